// Pictures as SVG, drawn at the width they have on the screen, so that their text keeps its size on a phone.

const MARKS = 6;
const MOST_MARKS = 16;

/** About `wanted` round numbers from at or below `low` to at or above `high`. */
function ticks(low, high, wanted = 5) {
  const rough = Math.max(high - low, 1e-9) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((each) => power * each >= rough) ?? 10);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** A linear scale from [low, high] to [from, to]. */
function scale(low, high, from, to) {
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}

let pictures = 0;

/** An SVG picture with a title and a description for those who do not see it. */
function picture(width, height, title, description, ...children) {
  pictures += 1;
  const ids = [`picture-${pictures}-title`, `picture-${pictures}-text`];
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-labelledby": ids.join(" ") },
    draw("title", { id: ids[0] }, title), draw("desc", { id: ids[1] }, description), ...children);
}

function line(x1, y1, x2, y2, name) {
  return draw("line", { x1, y1, x2, y2, class: name });
}

function label(x, y, text, name = "label", anchor = "start") {
  return draw("text", { x, y, class: name, "text-anchor": anchor }, text);
}

/** One of six marks (circle, square, triangle, diamond, and the first two hollow), so that colour is not needed. */
function mark(x, y, index, size = 4) {
  const shape = index % MARKS;
  const attributes = { class: `mark s${shape}${shape > 3 ? " hollow" : ""}` };
  if (shape === 0 || shape === 4) return draw("circle", { cx: x, cy: y, r: size, ...attributes });
  const corners = {
    1: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    2: [[0, -1.25], [1.2, 0.95], [-1.2, 0.95]],
    3: [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]],
    5: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
  }[shape].map(([dx, dy]) => `${(x + dx * size).toFixed(1)},${(y + dy * size).toFixed(1)}`);
  return draw("polygon", { points: corners.join(" "), ...attributes });
}

const ruler = document.createElement("canvas").getContext("2d");

/** The text if it is at most `room` wide, else its beginning with an ellipsis. */
function fitted(text, room) {
  ruler.font = LABEL_FONT;
  if (ruler.measureText(text).width <= room) return text;
  const signs = [...text];
  let kept = signs.length;
  while (kept > 1 && ruler.measureText(`${signs.slice(0, kept).join("")}…`).width > room) kept -= 1;
  return `${signs.slice(0, kept).join("").trimEnd()}…`;
}

/**
 * Values with intervals, one below another, on one scale.
 * rows: {label, value, low, high, note, strong}; options: {width, title, description, low, high, references, format}.
 * A reference is {value, text, name}: a vertical line, which the legend explains.
 */
function intervalChart(rows, options) {
  const { width, references = [], format = digits } = options;
  const narrow = width < 520;
  const height = narrow ? 50 : 32;
  const room = columns(rows, width, narrow);
  const marksAt = ticks(options.low, options.high, narrow ? 4 : 6);
  const x = scale(marksAt[0], marksAt[marksAt.length - 1], room.left, room.right);
  const bottom = rows.length * height + 6;
  const grid = marksAt.flatMap((value) => [
    line(x(value), 0, x(value), bottom, "grid"), label(x(value), bottom + 18, format(value), "tick", "middle"),
  ]);
  const lines = references.map(({ value, name }) => line(x(value), 0, x(value), bottom, `reference ${name}`));
  const body = rows.flatMap((row, index) => intervalRow(row, index * height + 2, { ...room, x, width, height, narrow }));
  return picture(width, bottom + 26, options.title, options.description, ...grid, ...lines, ...body);
}

const LABEL_FONT = "14px system-ui, sans-serif";
const TICK_FONT = "12px system-ui, sans-serif";

/** Where the scale begins and ends beside labels and notes; on narrow screens these stand above each row's line. */
function columns(rows, width, narrow) {
  if (narrow) return { left: 20, right: width - 22 };
  ruler.font = `650 ${LABEL_FONT}`;
  const widest = (key) => Math.max(...rows.map((row) => ruler.measureText(row[key]).width));
  return { left: Math.min(widest("label"), width * 0.3) + 26, right: width - widest("note") - 26 };
}

function intervalRow(row, y, { x, left, right, width, height, narrow }) {
  const middle = narrow ? y + height - 15 : y + height / 2;
  const name = row.strong ? "label strong halo" : "label halo";
  const parts = narrow
    ? [label(0, y + 16, fitted(row.label, width * 0.5), name), label(width, y + 16, row.note, "value halo", "end")]
    : [label(0, middle + 5, fitted(row.label, left - 22), name), label(right + 18, middle + 5, row.note, "value")];
  if (row.value === null) return parts;
  if (row.low !== null) parts.push(...whisker(x(row.low), middle, x(row.high), middle));
  return [...parts, draw("circle", { cx: x(row.value), cy: middle, r: row.strong ? 6 : 5, class: row.strong ? "dot strong" : "dot" })];
}

/** An interval: a line with a short bar across each end. */
function whisker(x1, y1, x2, y2) {
  const [dx, dy] = x1 === x2 ? [4, 0] : [0, 5];
  const ends = [[x1, y1], [x2, y2]].map(([x, y]) => line(x - dx, y - dy, x + dx, y + dy, "whisker"));
  return [line(x1, y1, x2, y2, "whisker"), ...ends];
}

/** The legend of reference lines. */
function referenceLegend(references) {
  return references.map(({ text, name }) => el("li", {}, draw("svg", { viewBox: "0 0 30 14", width: 30, height: 14, "aria-hidden": "true" },
    line(1, 7, 29, 7, `reference ${name}`)), " ", text));
}

/**
 * Lines over whole numbers.
 * series: {points: [{x, y, low, high}], index, strong, dashed}; options: {width, title, description, xText, yText,
 * references, chosen, format, low, high, height}. A reference is {value, text, name}: a horizontal line.
 */
function lineChart(series, options) {
  const { width, references = [], format = digits } = options;
  const height = options.height ?? Math.round(Math.min(340, Math.max(240, width * 0.45)));
  const points = series.flatMap((each) => each.points);
  const values = points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
  values.push(...references.map((each) => each.value));
  const marksAt = ticks(options.low ?? Math.min(...values), options.high ?? Math.max(...values), 5);
  const most = Math.max(1, ...points.map((point) => point.x));
  ruler.font = TICK_FONT;
  const room = Math.max(...marksAt.map((value) => ruler.measureText(format(value)).width));
  const box = { left: Math.ceil(room) + 8, right: width - 2, top: 26, bottom: height - 40 };
  const x = scale(1, most, box.left + 16, box.right - 12);
  const y = scale(marksAt[0], marksAt[marksAt.length - 1], box.bottom, box.top);
  const parts = [
    ...marksAt.flatMap((value) => [
      line(box.left, y(value), box.right, y(value), "grid"), label(box.left - 6, y(value) + 4, format(value), "tick", "end"),
    ]),
    ...wholeTicks(most, width).map((value) => label(x(value), box.bottom + 17, String(value), "tick", "middle")),
    label(0, 12, options.yText, "tick"),
    label(box.right, height - 4, options.xText, "tick", "end"),
    options.chosen ? line(x(options.chosen), box.top, x(options.chosen), box.bottom, "chosen") : null,
    ...references.map(({ value, name }) => line(box.left, y(value), box.right, y(value), `reference ${name}`)),
    ...series.map((each) => oneLine(each, x, y)),
  ];
  return picture(width, height, options.title, options.description, ...parts);
}

/** Whole numbers from 1 on that have room beside each other. */
function wholeTicks(most, width) {
  const step = Math.ceil(most / Math.max(2, Math.floor(width / 34)));
  return Array.from({ length: Math.ceil(most / step) }, (_, index) => 1 + index * step);
}

function oneLine({ points, index, strong, dashed }, x, y) {
  const path = points.map((point) => `${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`).join(" ");
  const every = Math.ceil(points.length / MOST_MARKS);
  const marked = points.filter((_, place) => place % every === 0);
  const known = marked.filter((point) => point.low !== null && point.low !== undefined);
  const whiskers = known.flatMap((point) => whisker(x(point.x), y(point.low), x(point.x), y(point.high)));
  const name = `line s${index % MARKS}${strong ? " strong" : ""}${dashed ? " dashed" : ""}`;
  const marks = marked.map((point) => mark(x(point.x), y(point.y), index, strong ? 4.5 : 3));
  return draw("g", {}, ...whiskers, draw("polyline", { points: path, class: name }), ...marks);
}

/** A line of a legend: the mark as drawn, then its name. */
function legendLine(index, text, { strong = false, dashed = false } = {}) {
  const name = `line s${index % MARKS}${strong ? " strong" : ""}${dashed ? " dashed" : ""}`;
  const sign = draw("svg", { viewBox: "0 0 30 14", width: 30, height: 14, "aria-hidden": "true" },
    line(1, 7, 29, 7, name), mark(15, 7, index, strong ? 4.5 : 3.5));
  return el("li", { class: strong ? "strong" : null }, sign, " ", ...[text].flat());
}

/** Two bars on one scale: what a round costs, in parts, and how many tokens it yields. */
function roundChart({ cost, expected }, { width, title, description }) {
  const end = Math.max(cost.total, expected) * 1.02;
  const marksAt = ticks(0, end, width < 520 ? 4 : 7);
  const x = scale(0, marksAt[marksAt.length - 1], 3, width - 12);
  const parts = marksAt.flatMap((value) => [
    line(x(value), 6, x(value), 116, "grid"), label(x(value), 134, digits(value), "tick", "middle"),
  ]);
  let start = 0;
  for (const [key, value] of [["verify", cost.verify], ["drafting", cost.drafting], ["fixed", cost.fixed]]) {
    if (value > 0) parts.push(draw("rect", { x: x(start), y: 30, width: x(start + value) - x(start), height: 22, class: `bar ${key}` }));
    start += value;
  }
  parts.push(label(2, 22, "costs, in plain steps", "label halo"), label(2, 80, "yields, in tokens", "label halo"),
    draw("rect", { x: x(0), y: 88, width: x(expected) - x(0), height: 22, class: "bar yield" }));
  return picture(width, 142, title, description, ...parts);
}
