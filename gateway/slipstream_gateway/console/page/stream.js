// The stream of figures, by fetch because an EventSource cannot send a key. It reconnects automatically.

const SILENT_MS = 25000;
const RETRY_MS = [500, 1000, 2000, 4000];

/** Splits a stream of bytes into server-sent events. */
async function* eventsOf(body, touched) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    touched();
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { kind: "message", data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event.kind = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) yield event;
    }
  }
}

/** `onEvent(kind, value)` for events, `onState(state, why)` with `connecting`, `live`, `lost` or `locked`. */
export class Stream {
  constructor({ headers, onEvent, onState }) {
    Object.assign(this, { headers, onEvent, onState, failures: 0, timer: 0, stopped: false });
  }

  async run() {
    this.stopped = false;
    while (!this.stopped) {
      this.onState("connecting", "");
      const why = await this.once();
      if (why === "locked") return;
      if (this.stopped) return;
      this.onState("lost", why);
      const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
      this.failures += 1;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  stop() {
    this.stopped = true;
    this.abort?.abort();
  }

  async once() {
    this.abort = new AbortController();
    try {
      this.touch();
      const answer = await fetch("admin/events", {
        headers: { accept: "text/event-stream", ...this.headers() }, signal: this.abort.signal, cache: "no-store",
      });
      if (answer.status === 401 || answer.status === 403) {
        this.onState("locked", await messageOf(answer));
        return "locked";
      }
      if (!answer.ok) return await messageOf(answer);
      for await (const event of eventsOf(answer.body, () => this.touch())) {
        this.failures = 0;
        this.onState("live", "");
        this.onEvent(event.kind, JSON.parse(event.data));
      }
      return "the gateway ended the stream";
    } catch (error) {
      return error.name === "AbortError" ? "no data for some time" : "the gateway is unreachable";
    } finally {
      clearTimeout(this.timer);
    }
  }

  touch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.abort.abort(), SILENT_MS);
  }
}

/** What the gateway says is wrong, in one sentence. */
export async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the gateway returned status ${answer.status}`;
  }
}
