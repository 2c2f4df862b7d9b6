// The speed model in the page. The same formulas as foredraft.speed in Python; tests hold both together.
// All times are in plain decoding steps of the device.

/**
 * v(N): time of a pass over `width` positions. Linear between measured widths, beyond the last one along the last slope
 * (at least flat).
 */
function verifyAt(curve, width) {
  const { widths, values } = curve;
  const found = widths.findIndex((each) => each >= width);
  if (found >= 0 && widths[found] === width) return values[found];
  if (widths.length === 1) return values[0];
  const right = found < 0 ? widths.length - 1 : found;
  const left = right - 1;
  const slope = (values[right] - values[left]) / (widths[right] - widths[left]);
  if (found < 0) return values[right] + Math.max(0, slope) * (width - widths[right]);
  return values[left] + slope * (width - widths[left]);
}

/** c of one pass of the draft on the device: its own, else the sum over the parts of its name; null if unknown. */
function draftCost(device, draft) {
  const costs = new Map(Object.entries(device.draft_cost));
  const own = (part) => costs.get(part) ?? null;
  if (own(draft) !== null) return own(draft);
  const parts = draft.split("+").map(own);
  return parts.includes(null) ? null : parts.reduce((sum, cost) => sum + cost, 0);
}

/**
 * What a round with a chain of `length` costs on average: the pass of the target, whose width depends on how much was
 * drafted, those of the draft, and the rest, which rounds without a draft do not have.
 */
function roundCost(device, draft, acceptance, length) {
  const step = draftCost(device, draft);
  if (step === null) return null;
  const shares = acceptance.widths[length - 1];
  const verify = shares.reduce((sum, share, index) => sum + share * verifyAt(device.verify, index + 1), 0);
  const drafting = step * acceptance.passes[length - 1];
  const fixed = device.fixed * (1 - shares[0]);
  return { verify, drafting, fixed, total: verify + drafting + fixed };
}

/**
 * speed-up(K) = E(K) / (Σ share(N)·v(N) + c·passes(K) + o·share(drafted)); null where the device has no cost for the
 * draft.
 */
function speedupOf(device, draft, acceptance, length) {
  const cost = roundCost(device, draft, acceptance, length);
  return cost === null ? null : acceptance.expected[length - 1] / cost.total;
}

/** The best chain length from 1 on and its speed-up; length 0 (plain decoding) where none is faster than 1. */
function bestLength(device, draft, acceptance) {
  let best = { length: 0, speedup: 1 };
  for (let length = 1; length <= acceptance.expected.length; length += 1) {
    const speedup = speedupOf(device, draft, acceptance, length);
    if (speedup !== null && speedup > best.speedup) best = { length, speedup };
  }
  return best;
}

/** a + share·(b - a), null if either is. */
function between(a, b, share) {
  return a === null || b === null ? null : a + share * (b - a);
}

/** The same for every number of a list. */
function listBetween(left, right, share) {
  return left.slice(0, right.length).map((value, index) => between(value, right[index], share));
}

/** The same for a value with its interval. */
function rateBetween(left, right, share) {
  const ends = ["value", "low", "high"].map((key) => [key, between(left[key], right[key], share)]);
  return Object.fromEntries(ends);
}

/**
 * Acceptance at any temperature: linear between the recorded ones, constant beyond them; null if none is recorded.
 * `recorded` tells whether the temperature is one of those.
 */
function acceptanceAt(summary, { draft, kind, rule, temperature }) {
  const rows = summary.acceptance
    .filter((row) => row.draft === draft && row.kind === kind && row.rule === rule)
    .sort((left, right) => left.temperature - right.temperature);
  if (!rows.length) return null;
  const above = rows.find((row) => row.temperature >= temperature) ?? rows[rows.length - 1];
  const below = [...rows].reverse().find((row) => row.temperature <= temperature) ?? rows[0];
  const gap = above.temperature - below.temperature;
  const share = gap > 0 ? (temperature - below.temperature) / gap : 0;
  return {
    alpha: rateBetween(below.alpha, above.alpha, share),
    byDepth: below.by_depth.slice(0, above.by_depth.length)
      .map((rate, depth) => rateBetween(rate, above.by_depth[depth], share)),
    expected: listBetween(below.expected, above.expected, share),
    passes: listBetween(below.model_passes, above.model_passes, share),
    widths: below.widths.map((shares, index) => listBetween(shares, above.widths[index], share)),
    recorded: rows.some((row) => row.temperature === temperature),
  };
}

/** Whether rule and temperature are the profile's own, for which intervals of the speed-up were computed. */
function isProfiled(summary, state) {
  return state.rule === summary.settings.rule && Math.abs(state.temperature - summary.settings.temperature) < 0.006;
}

/** The prediction that Python made for draft, kind and device; undefined if it made none. */
function predicted(summary, { draft, kind, device }) {
  return summary.predictions.find((row) => row.draft === draft && row.kind === kind && row.device === device);
}

/** The verdict for a device over all kinds, else that of its first kind. */
function overallVerdict(summary, device, all) {
  const rows = summary.verdicts.filter((row) => row.device === device);
  return rows.find((row) => row.kind === all) ?? rows[0];
}

/** The kinds to choose from, that of all texts first; of a single kind only one of the two, which are the same. */
function kindsOf(summary, all) {
  const recorded = new Set(summary.acceptance.map((row) => row.kind));
  const found = [all, ...summary.kinds.map((kind) => kind.name)].filter((kind) => recorded.has(kind));
  return summary.kinds.length > 1 ? found : found.slice(0, 1);
}

/** Where the controls start: what is to be shipped on the first device. */
function startState(summary, all) {
  const device = summary.devices[0].name;
  const verdict = overallVerdict(summary, device, all);
  const [kind] = kindsOf(summary, all);
  const ranked = summary.predictions
    .filter((row) => row.device === device && row.kind === kind)
    .sort((left, right) => right.best.speedup.value - left.best.speedup.value);
  const state = {
    device,
    draft: verdict.draft ?? ranked[0]?.draft ?? summary.drafts[0].name,
    kind,
    rule: summary.settings.rule,
    temperature: summary.settings.temperature,
  };
  return { ...state, length: shippedLength(summary, state) };
}

/** The best length under the state's costs; where drafting does not pay, a middling one, so that it can be seen. */
function shippedLength(summary, state) {
  const acceptance = acceptanceAt(summary, state);
  const device = summary.devices.find((each) => each.name === state.device);
  const best = acceptance === null ? 0 : bestLength(device, state.draft, acceptance).length;
  return best || Math.min(4, summary.longest);
}
