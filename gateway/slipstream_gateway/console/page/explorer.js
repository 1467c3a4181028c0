// The decision for a pasted request, with its reasons.

import { $, h, put, row, text } from "./dom.js";
import { count, percent, seconds, words } from "./format.js";
import { headers } from "./key.js";
import { messageOf } from "./stream.js";

/** A pasted body with the model filled in; any other text is a prompt. */
export function bodyOf(pasted, model) {
  if (pasted.trimStart().startsWith("{")) {
    const body = JSON.parse(pasted);
    return body.messages || body.prompt ? { model, ...body } : { model, messages: [body] };
  }
  return { model, messages: [{ role: "user", content: pasted }] };
}

export function wireExplorer(modelOf, onExplained) {
  $("explore").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const found = await explain(bodyOf($("request").value, modelOf()));
      put("explained", answer(found));
      const { output_tokens: tokens, expected_output_tokens: expected, acceptance } = found.numbers ?? {};
      onExplained(acceptance === undefined ? null : { pair: found.pair, tokens: tokens ?? expected, acceptance });
    } catch (error) {
      put("explained", h("p", { class: "problem" }, error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message));
      onExplained(null);
    }
  });
}

async function explain(body) {
  let reply;
  try {
    reply = await fetch("v1/route", { method: "POST", headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify(body) });
  } catch {
    throw new Error("The gateway is unreachable.");
  }
  if (!reply.ok) throw new Error(await messageOf(reply));
  return reply.json();
}

function answer(found) {
  const numbers = found.numbers ?? {};
  return [
    h("p", { class: "verdict" }, h("b", { class: `badge ${found.arm === "speculative" ? "yes" : "quiet"}` }, found.arm),
      ` · ${words(found.reason)}`, found.draft_length ? ` · γ = ${found.draft_length}` : ""),
    h("p", { class: "lead" }, `${found.detail[0].toUpperCase()}${found.detail.slice(1)}.`),
    h("dl", { class: "facts" }, facts(found, numbers).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
    found.profile?.evidence?.length ? h("p", { class: "note" }, `Evidence of the classifier: ${found.profile.evidence.join("; ")}.`) : null,
    h("details", null, h("summary", null, "Every number"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Every number" },
      h("table", null, h("tbody", null, Object.entries(numbers).map(([name, value]) => row(words(name), text(shown(name, value)))))))),
  ];
}

function facts(found, numbers) {
  const from = (level) => (level ? ` (${level})` : "");
  return [
    ["class", found.class],
    numbers.output_tokens !== undefined && ["expected tokens", `${count(numbers.output_tokens)} ± ${count(numbers.output_tokens_se)}${from(numbers.output_tokens_level)}`],
    numbers.acceptance !== undefined && ["acceptance β", `${percent(numbers.acceptance)} ± ${percent(numbers.acceptance_se)}${from(numbers.acceptance_level)}`],
    numbers.tokens_per_step !== undefined && ["tokens per step", numbers.tokens_per_step.toFixed(2)],
    numbers.plain_s !== undefined && ["plain would take", seconds(numbers.plain_s)],
    numbers.speculative_s !== undefined && ["speculative would take", seconds(numbers.speculative_s)],
    numbers.saving_s !== undefined && ["predicted saving", `${seconds(numbers.saving_s)} ± ${seconds(numbers.saving_se_s)}`],
    numbers.saving_share !== undefined && ["predicted saving", `${percent(numbers.saving_share)} of the time; nothing timed yet`],
    numbers.margin_s !== undefined && ["required saving, more than", seconds(numbers.margin_s)],
  ].filter(Boolean);
}

const shown = (name, value) => {
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_s")) return seconds(value);
  return Number.isInteger(value) ? count(value) : value.toPrecision(3);
};
