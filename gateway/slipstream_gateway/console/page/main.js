// The page's state and its wiring. Events replace sections of the state; all drawing is from the state alone.

import { drawAcceptance } from "./acceptance.js";
import { drawMap } from "./breakeven.js";
import { $, h, put, say } from "./dom.js";
import { wireExplorer } from "./explorer.js";
import { askForKey, headers } from "./key.js";
import { drawKeys } from "./keys.js";
import { drawKill, wireKill } from "./kill.js";
import { drawLatency } from "./latency.js";
import { drawRequests } from "./requests.js";
import { drawHeld, drawRollout, drawServers } from "./servers.js";
import { drawSpeedUp } from "./speedup.js";
import { Stream } from "./stream.js";
import { drawTiles } from "./tiles.js";

const page = { state: null, pair: "", explored: null, isPaused: false };
const SAID = { connecting: "Connecting", live: "Live", lost: "Disconnected", locked: "Locked" };

function draw() {
  const { state, pair } = page;
  if (!state) return;
  drawTiles(state, pair);
  drawRequests(state, pair);
  drawKill(state, pair);
  drawSpeedUp(state, pair);
  drawMap(state, pair, page.explored);
  drawAcceptance(state, pair);
  drawLatency(state, pair);
  drawServers(state, pair);
  drawHeld(state, pair);
  drawKeys(state);
  drawRollout(state, pair);
  const { version, origin, generation, connected } = state.gateway;
  say("foot", `Slipstream ${version} · configuration from ${origin}` +
    `${connected ? "" : " (not connected)"}, generation ${generation.slice(0, 12)}`);
}

function drawPairs() {
  const select = $("pair");
  const pairs = page.state.pairs;
  const names = pairs.map((found) => found.pair);
  if (!names.includes(page.pair)) page.pair = names[0] ?? "";
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    put("pair", pairs.map((found) => h("option", { value: found.pair }, found.model)));
  }
  select.value = page.pair;
}

function onEvent(kind, value) {
  const next = kind === "snapshot" ? value : { ...page.latest, ...value };
  page.latest = next;
  if (page.isPaused && page.state) return;
  page.state = next;
  drawPairs();
  draw();
}

function onState(state, why) {
  const link = $("link");
  if (state === "connecting" && link.dataset.state === "lost") return; // stays lost until the connection is back
  link.dataset.state = state;
  say("link-text", page.isPaused && state === "live" ? "Paused" : SAID[state]);
  $("content").classList.toggle("stale", state === "lost" && page.state !== null);
  $("alert").hidden = state !== "lost";
  say("alert", state === "lost" ? `Disconnected: ${why}. The figures are the last ones received; the page reconnects automatically.` : "");
  if (state === "locked") askForKey(why).then(() => stream.run());
}

const stream = new Stream({ headers, onEvent, onState });

$("pair").addEventListener("change", (event) => {
  page.pair = event.target.value;
  draw();
});
$("pause").addEventListener("click", () => {
  page.isPaused = !page.isPaused;
  $("pause").setAttribute("aria-pressed", String(page.isPaused));
  say("link-text", page.isPaused ? "Paused" : SAID[$("link").dataset.state] ?? "Connecting");
  if (!page.isPaused && page.latest) onEvent("snapshot", page.latest);
});
$("key").addEventListener("click", () => askForKey("Another key?").then(() => {
  stream.stop();
  stream.run();
}));
wireKill();
wireExplorer(() => page.state?.pairs.find((found) => found.pair === page.pair)?.model ?? "", (explored) => {
  page.explored = explored;
  draw();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) draw();
  width = innerWidth;
});
stream.run();
