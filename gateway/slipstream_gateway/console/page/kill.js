// The kill switch, with a confirmation, a name, and the time until it took effect.

import { $, h, put, say } from "./dom.js";
import { clock, seconds } from "./format.js";
import { headers } from "./key.js";
import { messageOf } from "./stream.js";

let shown = null;

export function drawKill(state, pair) {
  shown = state.pairs.find((found) => found.pair === pair) ?? null;
  $("h-kill").closest("section").classList.toggle("on", Boolean(shown?.killed));
  const button = $("kill-open");
  const ours = Boolean(shown?.switched);
  button.hidden = !shown || !shown.has_draft || Boolean(shown.command) || (shown.killed && !ours);
  button.textContent = ours ? "Allow speculation again…" : "Stop speculation…";
  button.classList.toggle("again", ours);
  say("kill-state", stateOf(shown));
  $("kill-command").hidden = !shown?.command;
  if (shown?.command) put("kill-command", shown.killed ? "To allow it again: " : "To stop it: ", h("code", null, commandOf(shown)));
}

function commandOf(pair) {
  const command = pair.killed ? pair.command.replace(" kill ", " unkill ") : pair.command;
  return pair.own_kill && !pair.killed_by_cluster ? `${command} --gateway ${location.origin}` : command;
}

function stateOf(pair) {
  if (!pair) return "";
  if (!pair.has_draft) return "This pair has no draft: no request speculates.";
  if (pair.own_kill) {
    const where = pair.killed_by_cluster ? "and by the cluster's kill switch" : "not in the cluster: it ends with a restart";
    return `Stopped at this gateway by ${pair.own_kill.by}, ${clock(pair.own_kill.at)}, ${where}.`;
  }
  if (pair.kill) return `Stopped by ${pair.kill.by}, ${clock(pair.kill.at)}${pair.kill.reason ? `: ${pair.kill.reason}` : "."}`;
  if (pair.killed) return pair.switched ? "Stopped by the pair's kill switch." : "Stopped by a kill switch of the manifest.";
  if (!pair.ready) return `Not ready: ${pair.status}`;
  return "Speculation is on, where it pays.";
}

export function wireKill() {
  const dialog = $("kill-dialog");
  $("kill-open").addEventListener("click", () => {
    const on = !shown.switched;
    say("kill-title", on ? `Stop speculation for ${shown.model}?` : `Allow speculation for ${shown.model} again?`);
    say("kill-what", on
      ? "New requests decode plainly, running ones stop drafting. Answers stay the same; they take longer if speculation paid."
      : "New requests speculate again where it pays.");
    say("kill-go", on ? "Stop speculation" : "Allow speculation");
    $("kill-go").classList.toggle("again", !on);
    say("kill-problem", "");
    dialog.showModal();
  });
  $("kill-cancel").addEventListener("click", () => dialog.close());
  $("kill-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    $("kill-go").disabled = true;
    try {
      await turn(!shown.switched);
      dialog.close();
    } catch (error) {
      say("kill-problem", error.message);
    } finally {
      $("kill-go").disabled = false;
    }
  });
}

async function turn(on) {
  const path = shown.pair.split("/").map(encodeURIComponent).join("/");
  let answer;
  try {
    answer = await fetch(`admin/kills/${path}`, {
      method: on ? "POST" : "DELETE",
      headers: { "content-type": "application/json", "x-slipstream-console": "1", ...headers() },
      body: JSON.stringify({ by: $("kill-by").value.trim(), reason: $("kill-reason").value.trim() }),
    });
  } catch {
    throw new Error("The gateway is unreachable: the switch is probably unchanged.");
  }
  if (!answer.ok) throw new Error(await messageOf(answer));
  const event = await answer.json();
  const gateways = `${event.workers} ${event.workers === 1 ? "gateway" : "gateways"}`;
  const note = event.note ? ` Note: ${event.note}.` : "";
  say("kill-landing", (event.landed_s === null
    ? `Applied; so far ${gateways} confirmed it.`
    : `${on ? "Stopped" : "Allowed again"}: took effect in ${seconds(event.landed_s)} on ${gateways}.`) + note);
}
