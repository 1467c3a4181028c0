// Whether a comparison of the arms says something, and how many answers it needs.

import { count } from "./format.js";

const ENOUGH = 10;
const WIDEST = 4;
const MOST = 10_000;

const width = (effect) => Math.log(effect.speed_up_high / effect.speed_up_low);

/** Each arm has enough answers, and the interval's ends differ by a factor that leaves something to read. */
export const isTelling = (effect) =>
  Boolean(effect) && effect.speed_up !== null && Math.min(effect.control_n, effect.speculative_n) >= ENOUGH && width(effect) <= Math.log(WIDEST);

/** "2 of about 10 answers" of the arm that has fewer: an interval narrows with the root of the number. */
export function progress(effect) {
  const have = Math.min(effect?.control_n ?? 0, effect?.speculative_n ?? 0);
  const ratio = effect?.speed_up ? width(effect) / Math.log(WIDEST) : 1;
  const wanted = Number.isFinite(ratio) ? have * Math.max(ratio, 1) ** 2 : 2 * have;
  return `${count(have)} of about ${count(Math.min(Math.max(ENOUGH, have < ENOUGH ? 0 : Math.ceil(wanted)), MOST))} answers`;
}
