// What the controls lead to: each figure is made anew from summary, words, state and the width there is.

/** What every figure needs, worked out once for a state. */
function viewOf(summary, words, state) {
  const device = summary.devices.find((each) => each.name === state.device);
  const acceptance = acceptanceAt(summary, state);
  const where = `${visible(state.draft)}, ${kindText(state.kind, words)}, ${visible(state.rule)}, temperature ${digits(state.temperature)}`;
  return { summary, words, state, device, acceptance, where, profiled: isProfiled(summary, state) };
}

/** A figure's unchanging frame. `make(view, width)` gives {caption, picture, legend, table, note}, all optional. */
function newFigure(heading, make) {
  const parts = {
    caption: el("p", { class: "setting" }), picture: el("div", { class: "picture" }), legend: el("ul", { class: "legend" }),
    note: el("p", { class: "quiet" }), table: el("div", {}),
  };
  const numbers = el("details", {}, el("summary", {}, "Numbers", el("span", { class: "hidden-words" }, `: ${heading}`)), parts.table);
  const node = el("figure", {}, el("h3", {}, heading), parts.caption, parts.picture, parts.legend, parts.note, numbers);
  const update = (view, width) => {
    const made = make(view, width);
    for (const [key, part] of Object.entries(parts)) {
      const content = [made[key] ?? []].flat();
      part.replaceChildren(...content);
      part.hidden = content.length === 0;
    }
    numbers.hidden = !made.table;
  };
  return { node, update };
}

const UNRECORDED = "Acceptance was not recorded for this draft, kind and rule.";
const NO_COST = "This draft was not considered on this device.";

// --- the prediction in words ------------------------------------------------------------------------------

/** Speed-up, its meaning, and the facts behind it: {value, text, meaning, facts}; value null where there is none. */
function prediction(view) {
  const { summary, state, device, acceptance, profiled } = view;
  const value = acceptance === null ? null : speedupOf(device, state.draft, acceptance, state.length);
  if (value === null) return { value, text: "no prediction", meaning: acceptance === null ? UNRECORDED : NO_COST, facts: [] };
  const known = predicted(summary, state);
  const best = bestLength(device, state.draft, acceptance);
  const ends = profiled && known && known.best.length === state.length ? range(known.best.speedup) : null;
  const cost = roundCost(device, state.draft, acceptance, state.length);
  const facts = [
    ["Speed", `${digits(value / device.step_seconds)} tokens/s; plain ${digits(1 / device.step_seconds)}`],
    ["A round", `yields ${two(acceptance.expected[state.length - 1])} tokens and costs ${two(cost.total)} plain steps`],
    ["Acceptance α", acceptance.alpha.value === null ? "unknown: nothing was drafted" : withRange(acceptance.alpha)],
    ["Best K here", best.length ? `${best.length}, with ${times(best.speedup)}` : "off: no chain is faster than plain decoding"],
  ];
  if (known) facts.push(["Pays from", known.break_even_alpha === null ? "no α: not even perfect guesses pay" : `α ${two(known.break_even_alpha)} on`]);
  return { value, text: times(value), meaning: meaningOf(value, summary.settings.threshold, ends), facts };
}

function meaningOf(value, threshold, ends) {
  const limit = `${digits(threshold)}×`;
  const words = value >= threshold ? `at or above the threshold of ${limit}`
    : value > 1 ? `faster than plain decoding, below the threshold of ${limit}`
      : "no faster than plain decoding";
  return `${words}${ends ? `; 95 % interval ${ends}` : ""}`;
}

// --- speed ------------------------------------------------------------------------------------------------

function speedReferences(summary) {
  const { threshold } = summary.settings;
  return [{ value: 1, text: "plain decoding", name: "plain" }, { value: threshold, text: `threshold ${digits(threshold)}×`, name: "threshold" }];
}

function byLengthFigure(view, width) {
  const { summary, state, acceptance, where } = view;
  if (acceptance === null) return { caption: where, note: UNRECORDED };
  const lengths = acceptance.expected.map((_, index) => index + 1);
  const known = summary.devices.map((device, index) => ({
    device, index, strong: device.name === state.device, dashed: device.estimated,
    points: lengths.map((x) => ({ x, y: speedupOf(device, state.draft, acceptance, x) })),
  })).filter(({ points }) => points.every(({ y }) => y !== null));
  if (!known.length) return { caption: where, note: NO_COST };
  const chosen = known.find(({ strong }) => strong);
  const said = chosen ? `On ${deviceText(chosen.device)} from ${times(chosen.points[0].y)} at K = 1 to ${times(chosen.points[lengths.length - 1].y)} at K = ${lengths.length}.` : "";
  return {
    caption: where,
    picture: lineChart([...known].sort((left, right) => Number(left.strong) - Number(right.strong)), {
      width, title: "Speed-up against K for each device", description: `Lines for ${many(known.length, "device")}. ${said}`,
      xText: "drafted tokens a round, K", yText: "speed-up", references: speedReferences(summary), chosen: state.length, format: times1,
    }),
    legend: [...known.map(({ device, index, strong, dashed }) => legendLine(index, deviceName(device), { strong, dashed })),
      ...referenceLegend(speedReferences(summary))],
    table: table(`Speed-up by K: ${where}`, ["Device", ...lengths.map((length) => `K = ${length}`)],
      known.map(({ device, points }) => [deviceName(device), ...points.map(({ y }) => times(y))])),
  };
}

const times1 = (value) => `${Number(value.toFixed(2))}×`;

function roundFigure(view, width) {
  const { state, device, acceptance, where } = view;
  const cost = acceptance && roundCost(device, state.draft, acceptance, state.length);
  if (!cost) return { caption: where, note: acceptance ? NO_COST : UNRECORDED };
  const expected = acceptance.expected[state.length - 1];
  const rows = [["Pass of the target over K + 1 positions", cost.verify], ["Passes of the draft", cost.drafting], ["The rest of a round", cost.fixed]];
  const names = ["verify", "drafting", "fixed"];
  return {
    caption: [`K = ${state.length} on `, ...deviceName(device), `: ${where}`],
    picture: roundChart({ cost, expected }, {
      width, title: "What a round costs and yields",
      description: `It costs ${two(cost.total)} plain steps and yields ${two(expected)} tokens: ${times(expected / cost.total)}.`,
    }),
    legend: [...rows.map(([text, value], index) => barLegend(names[index], `${text}: ${two(value)}`)), barLegend("yield", `Tokens: ${two(expected)}`)],
    note: "Plain decoding yields one token a step. Drafting pays where the lower bar is longer than the upper one.",
    table: table("A round", ["Part", "Plain steps"], [...rows.map(([text, value]) => [text, two(value)]), ["Together", two(cost.total)], ["Tokens it yields", two(expected)]]),
  };
}

function barLegend(name, text) {
  return el("li", {}, draw("svg", { viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" },
    draw("rect", { x: 1, y: 1, width: 12, height: 12, class: `bar ${name}` })), " ", text);
}

/** All drafts on the chosen device and kind, the fastest first, each at its best K. */
function ranking(view) {
  const { summary, state, device, profiled } = view;
  return summary.drafts.map((draft) => {
    const acceptance = acceptanceAt(summary, { ...state, draft: draft.name });
    if (acceptance === null || draftCost(device, draft.name) === null) return { draft, speedup: null };
    const known = predicted(summary, { ...state, draft: draft.name });
    const best = bestLength(device, draft.name, acceptance);
    const ends = profiled && known ? known.best.speedup : { low: null, high: null };
    return { draft, acceptance, known, length: best.length, speedup: { value: best.speedup, low: ends.low, high: ends.high } };
  }).sort((left, right) => (right.speedup?.value ?? 0) - (left.speedup?.value ?? 0));
}

function draftsFigure(view, width) {
  const { summary, state, device, words } = view;
  const ranked = ranking(view);
  const shown = ranked.filter(({ speedup }) => speedup !== null);
  const setting = `${kindText(state.kind, words)}, ${visible(state.rule)}, temperature ${digits(state.temperature)}`;
  const caption = ["On ", ...deviceName(device), `, each draft at its best K: ${setting}`];
  if (!shown.length) return { caption, note: UNRECORDED };
  const ends = shown.flatMap(({ speedup }) => [speedup.value, speedup.low ?? 1, speedup.high ?? 1]);
  const rows = shown.map(({ draft, length, speedup }) => ({
    label: visible(draft.name), ...speedup, strong: draft.name === state.draft,
    note: `${times(speedup.value)}  ${length ? `K = ${length}` : "off"}`,
  }));
  return {
    caption,
    picture: intervalChart(rows, {
      width, title: "Drafts compared", description: rows.map((row) => `${row.label}: ${row.note}`).join("; "),
      low: Math.min(0.95, ...ends), high: Math.max(1.05, summary.settings.threshold, ...ends), references: speedReferences(summary), format: times1,
    }),
    legend: referenceLegend(speedReferences(summary)),
    note: view.profiled ? null : "Intervals are known at the profile’s own rule and temperature only.",
    table: table(`Drafts on ${deviceText(device)}: ${setting}`, ["Draft", "Best K", "Speed-up", "α", "Pays from α", "Size", "Weights read a token"], ranked.map(draftRow)),
  };
}

function draftRow({ draft, acceptance, known, length, speedup }) {
  const size = draft.bytes ? bytes(draft.bytes) : "none";
  if (speedup === null) return [name(draft.name), MISSING, MISSING, MISSING, MISSING, size, MISSING];
  const even = known ? (known.break_even_alpha === null ? "never" : two(known.break_even_alpha)) : MISSING;
  return [name(draft.name), length || "off", withRange(speedup, times), withRange(acceptance.alpha), even, size,
    known ? bytes(known.best.weight_bytes_per_token) : MISSING];
}

// --- acceptance -------------------------------------------------------------------------------------------

function byKindFigure(view, width) {
  const { summary, state, words } = view;
  const setting = `${visible(state.draft)}, ${visible(state.rule)}, temperature ${digits(state.temperature)}`;
  const found = kindsOf(summary, words.all).map((kind) => ({ kind, acceptance: acceptanceAt(summary, { ...state, kind }) })).filter(({ acceptance }) => acceptance);
  if (!found.length) return { caption: setting, note: UNRECORDED };
  const rows = found.map(({ kind, acceptance: { alpha } }) => ({
    label: kindText(kind, words), ...alpha, strong: kind === state.kind, note: alpha.value === null ? "unknown" : withRange(alpha),
  }));
  const gate = { value: words.gateAlpha, text: `the conventional gate, α ≥ ${words.gateAlpha}`, name: "gate" };
  return {
    caption: setting,
    picture: intervalChart(rows, {
      width, title: "α by kind of prompt", description: rows.map((row) => `${row.label}: ${row.note}`).join("; "), low: 0, high: 1, references: [gate],
    }),
    legend: referenceLegend([gate]),
    table: table(`α by kind: ${setting}`, ["Kind", "α", "95 % interval"],
      rows.map((row) => [name(row.label), row.value === null ? "unknown" : two(row.value), range(row) ?? "none"])),
  };
}

function byDepthFigure(view, width) {
  const { acceptance, where } = view;
  const rates = acceptance === null ? [] : acceptance.byDepth;
  const points = rates.map((rate, depth) => ({ x: depth + 1, y: rate.value, low: rate.low, high: rate.high })).filter(({ y }) => y !== null);
  if (!points.length) return { caption: where, note: acceptance === null ? UNRECORDED : "Nothing was drafted here, so acceptance is unknown." };
  const alpha = acceptance.alpha.value;
  const flat = alpha === null ? [] : [{ value: alpha, text: `α over all depths, ${two(alpha)}`, name: "gate" }];
  return {
    caption: where,
    picture: lineChart([{ points, index: 0, strong: true }], {
      width, title: "Acceptance by depth", description: points.map(({ x, y }) => `depth ${x}: ${two(y)}`).join("; "),
      xText: "depth: the first, second, … drafted token", yText: "acceptance", low: 0, high: 1, height: 240, references: flat,
    }),
    legend: referenceLegend(flat),
    note: "Each value is the share accepted of those evaluated at that depth, that is, where all before were accepted.",
    table: table(`Acceptance by depth: ${where}`, ["Depth", "Acceptance", "95 % interval"], points.map((point) => [String(point.x), two(point.y), range(point) ?? "none"])),
  };
}

// --- the tree ---------------------------------------------------------------------------------------------

function treeFigure(view, width) {
  const { summary, state, device, words } = view;
  const tree = summary.trees.find((row) => row.draft === state.draft && row.kind === state.kind && row.device === state.device);
  const caption = ["For ", name(state.draft), ` on `, ...deviceName(device), `, ${kindText(state.kind, words)}, at the profile’s rule and temperature`];
  if (!tree || !tree.parents.length) return { caption, note: "No tree pays here." };
  const layout = treeLayout(tree.parents);
  const levels = treeLevels(layout);
  const shape = isChain(tree.parents) ? `a chain of ${tree.parents.length}: branches do not pay here`
    : `${many(tree.parents.length, "node")}, ${levels.join(" + ")} by depth`;
  return {
    caption,
    picture: treePicture(tree.parents, { width, title: "The best tree", description: `The best tree is ${shape}.` }),
    note: `${shape.startsWith("a chain") ? "The best tree is " : ""}${shape}. It yields ${two(tree.expected)} tokens a round: ${times(tree.speedup)}${tree.speedup < 1 ? ", slower than plain decoding" : ""}. The square is the last kept token; filled nodes are first choices, the numbers their ranks among siblings.`,
    table: table("Nodes of the tree", ["Node", "Parent", "Depth", "Choice"],
      tree.parents.map((parent, node) => [String(node), parent < 0 ? "last kept token" : String(parent), String(layout.nodes[node].depth), String(layout.nodes[node].rank)])),
  };
}

/** All figures in the order in which they are shown. */
function allFigures() {
  return [
    newFigure("Speed-up against K", byLengthFigure), newFigure("What a round costs and yields", roundFigure),
    newFigure("Drafts compared", draftsFigure), newFigure("α by kind of prompt", byKindFigure),
    newFigure("Acceptance by depth", byDepthFigure), newFigure("The best tree", treeFigure),
  ];
}
