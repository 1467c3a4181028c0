// The limits of each key, and their usage.

import { $, h, nothing, put, row, say } from "./dom.js";
import { count, usd } from "./format.js";

export function drawKeys(state) {
  const { keys } = state;
  $("keys-box").hidden = !keys;
  if (!keys) return;
  const where = keys.kept === "redis" ? "of all gateways together, counted in Redis" : "of this gateway alone";
  say("keys-lead", `The present usage of each key's limits, ${where}.${keys.more ? ` ${count(keys.more)} more keys have limits.` : ""}`);
  put("keys", keys.rows.length ? keys.rows.map((key) => row(key.name || key.id, part(key.requests_per_minute, count),
    part(key.tokens_per_minute, count), part(key.concurrent, count), part(key.usd_per_day, usd))) : nothing(5, "No key has limits."));
}

function part(found, shown) {
  if (!found) return h("td", { class: "n" }, h("span", { class: "badge quiet" }, "no limit"));
  const text = `${shown(found.used)} of ${shown(found.limit)}`;
  return h("td", { class: "n" }, found.used < found.limit ? text : h("span", { class: "badge no" }, `${text}, used up`));
}
