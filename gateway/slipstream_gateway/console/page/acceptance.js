// The share of draft tokens that were accepted, per class over time.

import { empty, frame, legend, linear, path, picture, timeScale, yAxis } from "./chart.js";
import { $, nothing, put, row, s } from "./dom.js";
import { count, DASH, percent, sum, tail } from "./format.js";

const COLOURS = 6;
const SMOOTH = 4;

export function drawAcceptance(state, pair) {
  const { traffic } = state;
  const classes = byClass(traffic.rows.filter((found) => found.pair === pair && sum(found.drafted)));
  put("accept-legend", legend(classes.slice(0, COLOURS).map((found, index) => [`c${index}`, found.name])));
  put("accept", chart(traffic, classes.slice(0, COLOURS)));
  const minutes = (count) => (count * 60) / traffic.bucket_s;
  put("accept-rows", classes.length
    ? classes.map((found) => row(found.name, ...[1, 5, 15].map((many) => share(found, minutes(many))), count(sum(found.drafted))))
    : nothing(5, "No draft tokens in the last 15 minutes."));
}

/** Classes with the most drafted tokens first. */
const byClass = (rows) =>
  rows
    .map((found) => ({ name: found.request_class, drafted: found.drafted, accepted: found.accepted }))
    .sort((one, other) => sum(other.drafted) - sum(one.drafted));

const share = (found, buckets) => {
  const drafted = sum(tail(found.drafted, buckets));
  return drafted ? percent(sum(tail(found.accepted, buckets)) / drafted) : DASH;
};

function chart(traffic, classes) {
  if (!classes.length) return empty("No draft tokens in the last 15 minutes.");
  const area = frame($("accept"), 210);
  const time = timeScale(traffic, classes[0].drafted.map((_, at) => sum(classes.map((found) => found.drafted[at]))), area);
  const y = linear([0, 1], [area.bottom, area.top]);
  const label = `Draft tokens accepted in the last minute: ${classes.map((found) => `${found.name} ${share(found, SMOOTH)}`).join(", ")}.`;
  return picture(area, label,
    yAxis(area, y, [0, 0.25, 0.5, 0.75, 1], (tick) => percent(tick)),
    time.axis,
    classes.map((found, index) => lines(found, index, time.x, y)));
}

/** A moving mean over a minute; a gap where nothing was drafted. */
function lines(found, index, x, y) {
  const parts = [[]];
  found.drafted.forEach((_, at) => {
    const from = Math.max(0, at - SMOOTH + 1);
    const drafted = sum(found.drafted.slice(from, at + 1));
    if (drafted) parts.at(-1).push([x(at), y(sum(found.accepted.slice(from, at + 1)) / drafted)]);
    else if (parts.at(-1).length) parts.push([]);
  });
  return s("g", { class: `c${index}` }, parts.filter((part) => part.length).map((part) => [
    s("path", { class: "curve", d: path(part) }),
    s("circle", { class: "dot", cx: part.at(-1)[0], cy: part.at(-1)[1], r: 3.5 }),
  ]));
}
