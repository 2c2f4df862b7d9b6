"""Which target, draft and context fit which phone: plans held against what devices allow. Loads no weights."""

from foredraft.plan.allowance import Allowance, Bound, allowance, given_allowance
from foredraft.plan.fleet import Fleet, FleetView, read_fleet, view
from foredraft.plan.forecast import Alphas, Forecast
from foredraft.plan.options import Candidate, Setting
from foredraft.plan.planner import Change, Choice, Planned, Question, plan_device

__all__ = [
    "Allowance",
    "Alphas",
    "Bound",
    "Candidate",
    "Change",
    "Choice",
    "Fleet",
    "FleetView",
    "Forecast",
    "Planned",
    "Question",
    "Setting",
    "allowance",
    "given_allowance",
    "plan_device",
    "read_fleet",
    "view",
]
