// Puts the page together and keeps the controls and the figures in step.

/** The controls as a state, and back. */
function readControls() {
  const value = (id) => byId(id).value;
  return {
    device: value("device"), draft: value("draft"), kind: value("kind"), rule: value("rule"),
    temperature: Number(value("temperature")), length: Number(value("length")),
  };
}

function writeControls(state) {
  for (const [id, value] of Object.entries(state)) byId(id).value = String(value);
}

function fillControls(summary, words) {
  const options = (id, values) => byId(id).replaceChildren(...values.map(([value, text]) => el("option", { value }, text)));
  options("device", summary.devices.map((device) => [device.name, deviceText(device)]));
  options("draft", summary.drafts.map((draft) => [draft.name, visible(draft.name)]));
  options("kind", kindsOf(summary, words.all).map((kind) => [kind, kindText(kind, words)]));
  options("rule", summary.rules.map((rule) => [rule, visible(rule)]));
  const temperature = byId("temperature");
  temperature.min = Math.min(summary.temperatures[0], summary.settings.temperature);
  temperature.max = Math.max(summary.temperatures[summary.temperatures.length - 1], summary.settings.temperature);
  temperature.disabled = temperature.min === temperature.max;
  byId("recorded").replaceChildren(...summary.temperatures.map((value) => el("option", { value })));
  byId("length").max = summary.longest;
}

/** The width of the pictures; the same for all, so that they align. */
function pictureWidth() {
  return Math.max(280, Math.min(840, byId("figures").clientWidth || 680));
}

function showPrediction(view) {
  const { state, device, where } = view;
  const found = prediction(view);
  byId("temperature-shown").textContent = digits(state.temperature);
  byId("length-shown").textContent = String(state.length);
  byId("setting").replaceChildren(...deviceName(device), `: K = ${state.length}, ${where}`);
  byId("speedup").textContent = found.text;
  byId("speedup").dataset.value = found.value === null ? "" : String(found.value);
  byId("meaning").textContent = found.meaning;
  byId("facts").replaceChildren(...found.facts.map(([term, words]) => el("div", {}, el("dt", {}, term), el("dd", {}, words))));
}

/** The part that the controls drive. */
function startExploring(summary, words) {
  const figures = allFigures();
  byId("figures").append(...figures.map(({ node }) => node));
  fillControls(summary, words);
  let samplesOf = null;
  const drawFigures = () => {
    const view = viewOf(summary, words, readControls());
    for (const figure of figures) figure.update(view, pictureWidth());
    if (samplesOf !== view.state.draft) byId("samples").replaceChildren(...samplesNodes(summary, words, view.state.draft));
    samplesOf = view.state.draft;
  };
  const later = once(drawFigures);
  const update = () => {
    showPrediction(viewOf(summary, words, readControls()));
    later();
  };
  const set = (state) => {
    writeControls(state);
    update();
  };
  byId("controls").addEventListener("input", update);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("best-length").addEventListener("click", () => set({ length: shippedLength(summary, readControls()) }));
  byId("reset").addEventListener("click", () => set(startState(summary, words.all)));
  writeControls(startState(summary, words.all));
  showPrediction(viewOf(summary, words, readControls()));
  drawFigures();
  onNewWidth(later);
}

/** The same action, at most once before the next time the screen is drawn. */
function once(action) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}

function onNewWidth(update) {
  let width = pictureWidth();
  new ResizeObserver(() => {
    if (pictureWidth() === width) return;
    width = pictureWidth();
    update();
  }).observe(byId("figures"));
}

function showHead(summary, words) {
  const { settings } = summary;
  byId("over").replaceChildren("Profile of ", name(settings.target));
  byId("headline").textContent = words.headline;
  const warm = summary.warm ? `, ${many(summary.warm, "repeat")} left out` : "";
  byId("meta").textContent = `${many(summary.texts, "text")}, ${many(summary.tokens, "token")}${warm}; temperature ${digits(settings.temperature)}, `
    + `${visible(settings.rule)}; worth shipping from ${digits(settings.threshold)}× on. Speed-ups are over plain decoding on the same device, with 95 % intervals.`;
}

function showQuality(summary, words) {
  const sentences = { ...summary.quality, live: summary.quality.live ?? words.noLive };
  byId("quality").replaceChildren(...Object.entries(words.quality).map(([key, title]) => (
    el("div", {}, el("dt", {}, title), el("dd", {}, visible(sentences[key]))))));
}

function showMethod(summary) {
  const { settings } = summary;
  const rows = summary.devices.map((device) => [
    deviceName(device), `${digits(device.step_seconds * 1e3)} ms`,
    device.verify.widths.map((width, index) => `v(${width}) ${two(device.verify.values[index])}`).join(", "),
    Object.entries(device.draft_cost).map(([draft, cost]) => `${visible(draft)} ${two(cost)}`).join(", "),
    digits(device.fixed), name(device.note),
  ]);
  const drafting = `top-k ${settings.top_k}, top-p ${digits(settings.top_p)}, seed ${settings.seed}, at most ${settings.max_tokens} tokens a text`;
  byId("method").replaceChildren(
    el("p", { class: "formula" }, "speed-up(K) = E(K) ÷ (v̄(K) + c·passes(K) + o·drafted(K))"),
    el("p", { class: "prose" }, "E(K): tokens that a round with a chain of K drafted tokens yields, the target’s own included. v(N): time of a pass over N positions ÷ time of one; v̄(K): its mean over the rounds, v(K+1) if each drafts K tokens. drafted(K): share of rounds that draft. c: one pass of the draft, o: the rest of a round, both in plain steps. α: accepted ÷ evaluated drafted tokens. Between recorded temperatures the page takes a straight line."),
    table("Devices", ["Device", "Plain step", "Verify curve", "c", "o", "Where the numbers come from"], rows, 9),
    el("p", { class: "quiet" }, `Text was made with ${drafting}.`));
  byId("foot").textContent = `Made ${visible(summary.created)} by foredraft ${visible(summary.version)}.`;
}

/** Paper shows everything: details are opened for printing and closed again. */
function openForPrinting() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
  });
}

function start() {
  const { summary, words } = JSON.parse(byId("data").textContent);
  byId("report").hidden = false;
  showHead(summary, words);
  byId("devices").replaceChildren(...devicesList(summary, words));
  const kinds = kindsTable(summary, words);
  if (kinds) byId("kinds").replaceChildren(kinds);
  byId("kinds-section").hidden = !kinds;
  byId("advice").replaceChildren(...summary.advice.map((sentence) => el("li", {}, visible(sentence))));
  byId("advice-section").hidden = !summary.advice.length;
  showQuality(summary, words);
  showMethod(summary);
  startExploring(summary, words);
  openForPrinting();
}

start();
