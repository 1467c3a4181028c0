"""An OpenAI-compatible server whose process ends when it reads a deadly prompt: `python breaking_server.py PORT LOG
DEADLY`.

Each request to generate is a line of LOG before it is answered. A prompt with DEADLY: the process ends after reading.
`late`: it ends in the middle of the stream. `reports`: it returns status 500, and ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._whole(200, {"object": "list", "data": []})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = request["messages"][0]["content"] if "messages" in request else request["prompt"]
        with open(sys.argv[2], "a", encoding="utf-8") as log:
            log.write(json.dumps([sys.argv[1], prompt]) + "\n")
        if sys.argv[3] in prompt:
            os._exit(1)
        if "reports" in prompt:
            self._whole(500, {"error": {"message": "the engine died"}})
            os._exit(1)
        if "slow" in prompt:
            time.sleep(0.5)
        if request.get("stream"):
            self._stream(dies="late" in prompt)
        else:
            message = {"role": "assistant", "content": "fine"}
            usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
            answer = {"message": message} if "messages" in request else {"text": "fine"}
            choice = {"index": 0, **answer, "finish_reason": "stop"}
            self._whole(200, {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})

    def _whole(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _stream(self, *, dies: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for word in ("fine ", "so far"):
            self._event({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
        if dies:
            os._exit(1)
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: Any) -> None:
        body = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "up", **event}
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
