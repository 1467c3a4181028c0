// The servers behind the gateway, the rollout, and the decisions on whole classes and pairs.

import { $, h, nothing, put, row, text } from "./dom.js";
import { clock, count, percent, seconds, words } from "./format.js";

export function drawServers(state, pair) {
  const seats = state.pools.filter((seat) => seat.pair === pair);
  const servers = [...new Set(seats.map((seat) => seat.server))];
  put("pools", servers.length ? servers.map((server) => {
    const own = seats.filter((seat) => seat.server === server);
    const of = (arm) => health(own.find((seat) => seat.arm === arm));
    return row(server, count(Math.max(...own.map((seat) => seat.outstanding))), of("plain"), of("speculative"));
  }) : nothing(4, "No servers yet."));
}

/** What was held, resumed and refused. */
export function drawHeld(state, pair) {
  const { entrances, resumed, denied } = state.resilience;
  const entrance = entrances.find((found) => found.pair === pair);
  const own = Object.fromEntries(resumed.filter((found) => found.pair === pair).map((found) => [found.cause, found.streams]));
  const facts = [
    ["admission", entrance ? `${count(entrance.in_flight)} of ${count(entrance.limit)}, ${count(entrance.queued)} waiting` : "no request yet"],
    ["pressure", entrance ? percent(entrance.pressure) : percent(0)],
    ["refused by admission", counts(entrance?.refused ?? {})],
    ["refused by keys and limits", counts(denied)],
    ["streams resumed elsewhere", counts(own)],
  ];
  put("held", facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

const counts = (found) =>
  Object.entries(found).filter(([, value]) => value).map(([name, value]) => `${words(name)} ${count(value)}`).join(", ") || "none";

function health(seat) {
  if (!seat) return text(h("span", { class: "badge quiet" }, "not used"));
  if (seat.circuit === "closed") return text([h("span", { class: "badge yes" }, "up"), ...withheld(seat).flatMap((badge) => [", ", badge])]);
  const why = seat.cause ? `: ${words(seat.cause)}` : "";
  const when = seat.retry_after_s > 0 ? `, probed in ${seconds(seat.retry_after_s)}` : "";
  return text(h("span", { class: "badge no" }, `${seat.circuit === "open" ? "ejected" : "being probed"}${why}${when}`));
}

/** What a check of the engine took away, and drafts shorter than the pair's, one badge each. */
const withheld = (seat) => [...taken(seat), ...shorter(seat)];

const shorter = (seat) => seat.longest_draft ? [h("span", { class: "badge quiet" }, `drafts of ${count(seat.longest_draft)} at most`)] : [];

const taken = (seat) => Object.entries(seat.withheld ?? {}).map(([capability, reason]) =>
  h("span", { class: reason === "engine_not_lossless" ? "badge no" : "badge quiet" }, `no ${words(capability)}: ${words(reason)}`));

export function drawRollout(state, pair) {
  const rows = state.rollout.filter((found) => found.pair === pair);
  $("rollout-box").hidden = !rows.length;
  $("no-rollout").hidden = rows.length > 0;
  put("rollout", rows.map((found) => row(found.request_class, text(found.phase), percent(found.share), h("td", { class: "why" }, found.message))));
  const events = state.history.filter((found) => found.pair === pair);
  put("history", events.length ? events.map(entry) : h("li", { class: "note" }, "No promotions, rollbacks or kills yet."));
}

function entry(event) {
  const what = event.rule === "Kill" ? `Speculation stopped by ${event.by}`
    : event.rule === "Unkill" ? `Speculation allowed again by ${event.by}`
      : `${event.rule}${event.name ? ` · ${event.name}` : ""}`;
  const steps = event.fromPhase ? `${event.fromPhase} → ${event.toPhase}${event.share === null || event.share === undefined ? "" : `, ${percent(event.share)}`}` : "";
  const landed = event.landed_s ? `took effect in ${seconds(event.landed_s)} on ${count(event.workers)} ${event.workers === 1 ? "gateway" : "gateways"}` : "";
  const why = [steps, event.message, event.reason, landed, event.note].filter(Boolean).join(" · ");
  return h("li", null, h("time", { datetime: event.time }, clock(event.time)), h("b", null, what), why && h("p", null, why));
}
