// Placement of labels for points: beside the point, or some lines above or below it, without overlaps.

const GAP = 11; // from a point's centre to its label, all in px
const LINE = 13;
const GLYPH = 6.9; // a conservative estimate of a letter's width, because nothing is drawn yet
const REACH = 7; // of a point
const LINES = [0, -1, 1, -2, 2, -3, 3, -4, 4];

/**
 * A place for each of `names`, whose points are `points` ([x, y]; the first ones choose first) inside of `bounds`
 * ({left, right, top, bottom}): {x, y, anchor, away}, the text's start or end and whether it needs a line to its point;
 * null where there is none without covering a name or a point.
 */
export function places(names, points, bounds) {
  const taken = points.map(([x, y]) => ({ left: x - REACH, right: x + REACH, top: y - REACH, bottom: y + REACH }));
  return names.map((name, index) => {
    const [x, y] = points[index];
    const spots = LINES.flatMap((line) => [1, -1].map((side) => spot(x, y + line * LINE, side, name.length * GLYPH, line !== 0)));
    const found = spots.find(({ box }) => holds(bounds, box) && !taken.some((other) => meet(box, other)));
    if (!found) return null;
    taken.push(found.box);
    return found;
  });
}

function spot(x, middle, side, width, away) {
  const start = x + side * GAP;
  const box = { left: Math.min(start, start + side * width), right: Math.max(start, start + side * width), top: middle - LINE / 2, bottom: middle + LINE / 2 };
  return { x: start, y: middle + 4, anchor: side > 0 ? "start" : "end", away, box };
}

const holds = (outer, inner) =>
  inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top && inner.bottom <= outer.bottom;

const meet = (one, other) =>
  one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
