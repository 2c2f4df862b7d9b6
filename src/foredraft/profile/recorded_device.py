"""A device as a report describes it, asked again without its profile."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.devices.device import no_draft
from foredraft.profile.report.load import draft_cost
from foredraft.profile.report.shape import DeviceUsed
from foredraft.speed import Costs, Curve


@dataclass(frozen=True)
class RecordedDevice:
    """Of the devices of a summary. How sure its numbers are is not recorded, so nothing widens an interval."""

    used: DeviceUsed

    @property
    def name(self) -> str:
        """As in the report."""
        return self.used["name"]

    @property
    def estimated(self) -> bool:
        """As in the report."""
        return self.used["estimated"]

    @property
    def step_seconds(self) -> float:
        """Seconds of a plain step."""
        return self.used["step_seconds"]

    @property
    def note(self) -> str:
        """As in the report."""
        return self.used["note"]

    @property
    def pessimistic(self) -> RecordedDevice:
        """The same."""
        return self

    @property
    def optimistic(self) -> RecordedDevice:
        """The same."""
        return self

    def costs(self, draft: str) -> Costs:
        """See ``Device.costs``."""
        found = draft_cost(self.used, draft)
        if found is None:
            raise no_draft(draft, self.name, self.used["draft_cost"])
        curve = Curve(tuple(self.used["verify"]["widths"]), tuple(self.used["verify"]["values"]))
        return Costs(curve, Curve((1,), (found,)) if found > 0 else None, self.used["fixed"])
