// The first screen: what to do on each device, and the same by kind of prompt.

/** A small sign for a decision: full, half, ring, or a ring with a bar. The words stand beside it. */
function decisionSign(decision) {
  const shape = {
    ship: draw("circle", { cx: 10, cy: 10, r: 8, class: "full" }),
    ship_by_kind: draw("path", { d: "M10 2 A8 8 0 0 0 10 18 Z", class: "full" }),
    better_draft: draw("circle", { cx: 10, cy: 10, r: 2.5, class: "full" }),
    off: line(4.5, 15.5, 15.5, 4.5, "bar"),
  }[decision];
  return draw("svg", { viewBox: "0 0 20 20", width: 20, height: 20, class: `sign ${decision}`, "aria-hidden": "true" },
    draw("circle", { cx: 10, cy: 10, r: 8, class: "ring" }), shape);
}

/** The scale that all devices share: from below 1 to above the highest interval and the threshold. */
function sharedScale(verdicts, threshold) {
  const ends = verdicts.flatMap(({ speedup }) => [speedup.value, speedup.low ?? speedup.value, speedup.high ?? speedup.value]);
  const low = Math.min(0.9, ...ends);
  const high = Math.max(threshold * 1.08, 1.2, ...ends);
  return [low - 0.02, high + 0.02];
}

function devicesList(summary, words) {
  const verdicts = summary.devices.map((device) => overallVerdict(summary, device.name, words.all));
  const ends = sharedScale(verdicts, summary.settings.threshold);
  return summary.devices.map((device, index) => deviceRow(device, verdicts[index], ends, { summary, words }));
}

function deviceRow(device, verdict, ends, { summary, words }) {
  const { threshold } = summary.settings;
  const step = digits(device.step_seconds * 1e3);
  return el("li", { class: "device" },
    el("div", { class: "who" }, el("h3", {}, ...deviceName(device)),
      el("p", { class: "quiet" }, `${digits(1 / device.step_seconds)} tokens/s plain (${step} ms each)`)),
    el("div", { class: "what" },
      el("p", { class: `decision ${verdict.decision}` }, decisionSign(verdict.decision), " ", words.decisions[verdict.decision]),
      el("p", { class: "reason" }, visible(verdict.reason))),
    el("div", { class: "gain" }, gainWords(verdict), gainPicture(verdict, ends, threshold, device)),
    el("dl", { class: "small" },
      el("div", {}, el("dt", {}, "Setting"), el("dd", {}, name(verdict.setting))),
      el("div", {}, el("dt", {}, `Gate α ≥ ${words.gateAlpha}`), el("dd", {}, ...gateNodes(verdict.gate)))));
}

function gainWords({ speedup, draft }) {
  const ends = range(speedup);
  const plain = draft === null && speedup.value === 1;
  return el("p", { class: "number" }, el("span", { class: "big" }, times(speedup.value)), " ",
    el("span", { class: "quiet" }, plain ? "plain decoding" : ends ? `${ends} (95 %)` : "no interval"));
}

function gainPicture(verdict, [low, high], threshold, device) {
  const width = 240;
  const x = scale(low, high, 6, width - 6);
  const { value, low: from, high: to } = verdict.speedup;
  const limit = `threshold ${digits(threshold)}×`;
  const words = `${times(value)}${from === null ? ", no interval" : `, 95 % interval ${range(verdict.speedup)}`}; plain decoding is 1, the ${limit}.`;
  const near = Math.abs(x(threshold) - x(1)) < 70;
  return picture(width, 46, `Expected speed-up on ${deviceText(device)}`, words,
    line(6, 14, width - 6, 14, "axis"), line(x(1), 4, x(1), 26, "reference plain"),
    line(x(threshold), 4, x(threshold), 26, "reference threshold"),
    label(x(1), 40, near ? "1" : "plain 1", "tick", "middle"),
    label(near ? x(threshold) - 4 : x(threshold), 40, limit, "tick", x(threshold) > width - 50 ? "end" : near ? "start" : "middle"),
    from === null ? null : line(x(from), 14, x(to), 14, "whisker thick"),
    draw("circle", { cx: x(value), cy: 14, r: 6, class: "dot strong" }));
}

function gateNodes(gate) {
  if (gate.alpha === null) return ["α is unknown: nothing was drafted"];
  const said = `α ${two(gate.alpha)} ${gate.passes ? "passes" : "fails"}, `;
  return gate.agrees ? [`${said}as the verdict says`] : [said, el("strong", {}, "but the verdict is different")];
}

/** Kinds × devices; null if there is only one kind. */
function kindsTable(summary, words) {
  if (summary.kinds.length < 2) return null;
  const cell = (kind, device) => {
    const verdict = summary.verdicts.find((row) => row.kind === kind.name && row.device === device.name);
    if (!verdict) return MISSING;
    return [el("span", { class: `decision ${verdict.decision}` }, decisionSign(verdict.decision), " ", words.decisions[verdict.decision]),
      el("span", { class: "gained" }, verdict.draft === null ? times(verdict.speedup.value) : withRange(verdict.speedup, times), verdict.gate.agrees ? null : el("strong", {}, " ≠ gate"))];
  };
  const rows = summary.kinds.map((kind) => [
    [name(kind.name), el("span", { class: "quiet under" }, many(kind.texts, "text"))],
    ...summary.devices.map((device) => cell(kind, device)),
  ]);
  const whole = table("Verdict by kind of prompt and device", ["Kind", ...summary.devices.map(deviceName)], rows, 9);
  whole.classList.add("matrix");
  const disagree = summary.verdicts.some((row) => row.kind !== words.all && !row.gate.agrees);
  const note = `“≠ gate”: the conventional gate α ≥ ${words.gateAlpha} says the opposite.`;
  return el("div", {}, whole, disagree ? el("p", { class: "quiet" }, note) : null);
}
