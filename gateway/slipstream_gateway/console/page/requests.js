// Requests per arm over time, and by class.

import { empty, frame, legend, linear, path, picture, roundTicks, timeScale, yAxis } from "./chart.js";
import { $, h, nothing, put, row, s, text } from "./dom.js";
import { count, percent, rate, sum, tail, words } from "./format.js";

export const ARMS = ["speculative", "plain", "control"];

export function drawRequests(state, pair) {
  const { traffic } = state;
  const rows = traffic.rows.filter((found) => found.pair === pair);
  put("rate-legend", legend(ARMS.map((arm) => [`a-${arm}`, arm])));
  put("rate", rateChart(traffic, rows));
  put("classes", classRows(traffic, rows));
  const reasons = traffic.reasons.filter((found) => found.pair === pair);
  const all = sum(reasons.map((found) => found.requests));
  put("reasons", all ? `Reasons: ${reasons.map((found) => `${words(found.reason)} ${percent(found.requests / all)}`).join(" · ")}` : "");
}

function rateChart(traffic, rows) {
  const area = frame($("rate"), 230);
  const perArm = ARMS.map((arm) => totals(rows.filter((found) => found.arm === arm), traffic));
  const stacks = perArm.map((_, index) => perArm[0].map((__, at) => sum(perArm.slice(0, index + 1).map((values) => values[at]))));
  const high = Math.max(...stacks.at(-1), 0);
  if (!high) return empty("No requests in the last 15 minutes.");
  const time = timeScale(traffic, stacks.at(-1), area, 1);
  const y = linear([0, high * 1.08], [area.bottom, area.top]);
  const label = `Requests per second: now ${rate(stacks.at(-1).at(-2))}, at most ${rate(high)}.`;
  return picture(area, label,
    yAxis(area, y, roundTicks(high), (tick) => String(Number(tick.toFixed(2)))),
    time.axis,
    stacks.map((stack, index) => s("path", { class: `area a-${ARMS[index]}`, d: band(stack, stacks[index - 1], time, y) })));
}

/** Requests per second by bucket; the newest, which is not over, is left out. */
const totals = (rows, traffic) =>
  Array.from({ length: traffic.buckets }, (_, at) => sum(rows.map((found) => found.requests[at])) / traffic.bucket_s).slice(0, -1);

function band(above, below, { x, from }, y) {
  const top = above.map((value, at) => [x(at + 1), y(value)]).slice(from);
  const bottom = above.map((_, at) => [x(at + 1), y(below ? below[at] : 0)]).slice(from).reverse();
  return `${path(top)}L${path(bottom).slice(1)}Z`;
}

function classRows(traffic, rows) {
  const classes = [...new Set(rows.map((found) => found.request_class))];
  const shown = classes
    .map((name) => ({ name, arms: Object.fromEntries(ARMS.map((arm) => [arm, rows.find((found) => found.request_class === name && found.arm === arm)])) }))
    .map(({ name, arms }) => ({
      name,
      recent: Object.fromEntries(ARMS.map((arm) => [arm, sum(tail(arms[arm]?.requests ?? [], traffic.recent_buckets))])),
      all: sum(ARMS.map((arm) => sum(arms[arm]?.requests ?? []))),
    }))
    .filter((found) => found.all)
    .sort((one, other) => other.all - one.all);
  if (!shown.length) return nothing(6, "No requests in the last 15 minutes.");
  return shown.map(({ name, recent }) => {
    const total = sum(Object.values(recent));
    return row(name, count(total), ...ARMS.map((arm) => count(recent[arm])), text(shareBar(recent, total)));
  });
}

function shareBar(recent, total) {
  const parts = ARMS.filter((arm) => recent[arm]).map((arm) => {
    const part = h("i", { class: `a-${arm}` });
    part.style.width = `${(100 * recent[arm]) / total}%`;
    return part;
  });
  return h("span", { class: "share", "aria-hidden": "true" }, parts);
}
