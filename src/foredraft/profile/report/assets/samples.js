// Generated texts with each token marked: the draft was right, it was wrong, or nothing was drafted there.

const OUTCOMES = [["free", "not drafted"], ["right", "draft was right"], ["wrong", "draft was wrong"]];

/** One token as its reader should see it; ends of lines stay ends of lines. */
function tokenNode([text, outcome]) {
  const shown = text === "" ? "\ufffd" : visible(text).replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t");
  return el("span", { class: `token ${OUTCOMES[outcome][0]}` }, shown);
}

function outcomeCounts(tokens) {
  const counts = [0, 0, 0];
  for (const [, outcome] of tokens) counts[outcome] += 1;
  return counts;
}

function samplesLegend() {
  const words = ["nothing was drafted there", "the draft guessed this token", "the draft guessed another token"];
  return el("ul", { class: "legend samples-legend" }, ...OUTCOMES.map(([key], outcome) => (
    el("li", {}, el("span", { class: `token ${key}` }, "token"), ` ${words[outcome]}`))));
}

function sampleNode(sample, open, words) {
  const counts = outcomeCounts(sample.tokens);
  const shares = `${counts[1]} right, ${counts[2]} wrong, ${counts[0]} not drafted`;
  const prompt = sample.prompt ? el("p", { class: "prompt", dir: "auto" }, el("span", { class: "quiet" }, "Prompt: "), visible(sample.prompt)) : null;
  return el("details", { class: "sample", open },
    el("summary", {}, el("strong", {}, kindText(sample.kind, words)), ` · ${many(sample.tokens.length, "token")}: ${shares}`),
    prompt, el("p", { class: "text", dir: "auto" }, ...sample.tokens.map(tokenNode)));
}

/** The samples of one draft, or the words that say why there are none. */
function samplesNodes(summary, words, draft) {
  if (!summary.samples.length) return [el("p", {}, words.noSamples)];
  const found = summary.samples.filter((sample) => sample.draft === draft);
  const caption = el("p", { class: "setting" }, "Guesses of ", name(draft), " in the target’s own text");
  if (!found.length) return [caption, el("p", {}, "There is no sample text for this draft.")];
  return [caption, samplesLegend(), ...found.map((sample, index) => sampleNode(sample, index === 0, words))];
}
