// The most important figures.

import { h, put } from "./dom.js";
import { isTelling, progress } from "./evidence.js";
import { count, DASH, duration, interval, percent, rate, sum, tail, times } from "./format.js";

const tile = (name, value, note, style = "") =>
  h("div", { class: `tile ${style}` }, h("span", null, name), h("b", null, value), h("small", null, note));

export function drawTiles(state, pair) {
  const { traffic, gateway } = state;
  const rows = traffic.rows.filter((row) => row.pair === pair);
  const recent = (key, keep = () => true) => sum(rows.filter(keep).map((row) => sum(tail(row[key], traffic.recent_buckets))));
  const requests = recent("requests");
  const span = (traffic.recent_buckets - 0.5) * traffic.bucket_s; // the newest one is half full on average
  const speculative = recent("requests", (row) => row.arm === "speculative");
  const drafted = recent("drafted");
  const everything = state.speed_up.find((found) => found.pair === pair)?.overall;
  const overall = everything?.e2e_s;
  const telling = isTelling(overall);
  const better = !telling ? "" : overall.speed_up_low > 1 ? "good" : overall.speed_up_high < 1 ? "bad" : "";
  const failed = sum(rows.map((row) => row.failed));
  const refused = sum(rows.map((row) => row.refused));
  const all = sum(rows.map((row) => sum(row.requests)));
  put("tiles",
    tile("requests per second", rate(requests / span), `${count(all)} in 15 minutes`),
    tile("speculative", requests ? percent(speculative / requests) : DASH, "of the last minute's requests"),
    tile("live speed-up, E2E", telling ? times(overall.speed_up) : DASH,
      telling ? interval(overall.speed_up_low, overall.speed_up_high) : progress(overall), better),
    savedTile(everything),
    tile("draft tokens accepted", drafted ? percent(recent("accepted") / drafted) : DASH, `${count(drafted)} drafted in the last minute`),
    tile("in flight", count(gateway.in_flight), `${count(gateway.queued)} waiting`),
    tile("failed", count(failed), (all ? `${percent(failed / all, 2)} of 15 minutes` : "nothing in 15 minutes") +
      (refused ? `; ${count(refused)} refused for an error of the client` : ""), failed ? "bad" : ""));
}

function savedTile(overall) {
  const name = "server time saved";
  if (!isTelling(overall?.server_s)) return tile(name, DASH, progress(overall?.server_s));
  const { seconds, low, high, plain_s } = overall.saved;
  const note = `of ${duration(plain_s)} (${duration(low)} to ${duration(high)})`;
  return tile(name, duration(seconds), note, low > 0 ? "good" : high < 0 ? "bad" : "");
}
