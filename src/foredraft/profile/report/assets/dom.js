// Small helpers: elements, numbers in words, text that may hold anything. Text is only ever put into text nodes.

const SVG = "http://www.w3.org/2000/svg";
const MISSING = "–";

/** An HTML element with attributes and children (nodes or texts; null is left out). */
function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);

/** Text of a user: its direction is its own, its control signs are visible. */
function name(text) {
  return el("bdi", {}, visible(text));
}

/** Text with halves of characters, control signs and signs that turn the direction made visible. */
function visible(text) {
  return [...text].map((sign) => visibleSign(sign, sign.codePointAt(0))).join("");
}

function visibleSign(sign, point) {
  if (point >= 0xd800 && point <= 0xdfff) return "\ufffd";
  if (point < 0x20 && sign !== "\n" && sign !== "\t") return String.fromCodePoint(0x2400 + point);
  if (point === 0x7f) return "\u2421";
  const turns = point === 0x200e || point === 0x200f || (point >= 0x202a && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
  return turns ? `[U+${point.toString(16).toUpperCase()}]` : sign;
}

/** A device's name with its mark if its speed is computed and not measured. */
function deviceName(device) {
  return device.estimated ? [name(device.name), " ", el("em", { class: "tag" }, "estimated")] : [name(device.name)];
}

/** The same as plain text, where no element may stand. */
function deviceText(device) {
  return visible(device.name) + (device.estimated ? " (estimated)" : "");
}

function kindText(kind, words) {
  return kind === words.all ? "all kinds" : visible(kind);
}

const two = (value) => (value === null || value === undefined ? MISSING : value.toFixed(2));
const times = (value) => (value === null || value === undefined ? MISSING : `${value.toFixed(2)}×`);

/** "0.78–0.87", or null where there is no interval. */
function range(found) {
  return found.low === null || found.high === null ? null : `${two(found.low)}–${two(found.high)}`;
}

/** "0.83 (0.78–0.87)". */
function withRange(found, format = two) {
  const ends = range(found);
  return format(found.value) + (ends ? ` (${ends})` : "");
}

/** Three digits: "52.1", "0.021", "1340". */
function digits(value) {
  return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** Decimal units: "397 MB". */
function bytes(count) {
  if (count === null) return MISSING;
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (count >= size) return `${digits(count / size)} ${unit}`;
  }
  return count ? `${digits(count)} B` : "none";
}

/** A whole number with narrow spaces between thousands. */
function count(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** "1 text", "9 600 tokens". */
function many(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

/** A table: `head` and cells are texts or lists of nodes; columns from `numbers` on are right-aligned numbers. */
function table(caption, head, rows, numbers = 1) {
  const align = (column) => (column >= numbers ? "number" : null);
  const top = head.map((cell, column) => el("th", { scope: "col", class: align(column) }, ...[cell].flat()));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, column) => (
    column === 0 ? el("th", { scope: "row" }, ...[cell].flat()) : el("td", { class: align(column) }, ...[cell].flat())
  ))));
  const whole = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...top)), el("tbody", {}, ...body));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, whole);
}
