# SPDX-License-Identifier: Apache-2.0
import json
import time
import warnings

from ._check import json_of, real, whole


def _or_none(check, name, value, low):
    return None if value is None else check(name, value, low)


class KvRecorder:
    """Writes router events to a file of JSON Lines, {"timestamp": ms since the beginning, "event": RouterEvent}, and reads it back.

    max_lines_per_file: then the recording goes on in output_path.1, .2, ... max_count, max_time (seconds) end it."""

    def __init__(self, component=None, output_path="kv_events.jsonl", max_lines_per_file=None, max_count=None, max_time=None):
        self.path, self._lines_max = str(output_path), _or_none(whole, "max_lines_per_file", max_lines_per_file, 1)
        self._count_max, self._time_max = _or_none(whole, "max_count", max_count, 0), _or_none(real, "max_time", max_time, 0)
        self._began, self._count, self._files, self._lines = time.monotonic(), 0, 1, 0
        self._file = open(self.path, "w", buffering=32768)

    def record(self, event):
        """One router event (dict, or JSON text). Returns whether it was written."""
        if self._file is None or (self._count_max is not None and self._count >= self._count_max):
            return False
        elapsed = time.monotonic() - self._began
        if self._time_max is not None and elapsed > self._time_max:
            return False
        if self._lines_max and self._lines == self._lines_max:
            self._file.close()
            self._file = open(f"{self.path}.{self._files}", "w", buffering=32768)
            self._files, self._lines = self._files + 1, 0
        event = event if isinstance(event, dict) else json_of("event", event)
        self._file.write(json.dumps({"timestamp": int(elapsed * 1000), "event": event}, separators=(",", ":")) + "\n")
        self._count, self._lines = self._count + 1, self._lines + 1
        return True

    def event_count(self):
        return self._count

    def elapsed_time(self):
        return time.monotonic() - self._began

    def shutdown(self):
        """Flushes and closes. Twice is fine."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.shutdown()

    @staticmethod
    def replay_events(input_path, indexer, timed=False, max_count=None, max_time=None):
        """Gives the events of a recording to indexer.apply_router_event; returns how many. Bad lines are warned about and left out."""
        began, n = time.monotonic(), 0
        max_count, max_time = _or_none(whole, "max_count", max_count, 0), _or_none(real, "max_time", max_time, 0)
        with open(input_path, encoding="utf-8", errors="replace") as lines:
            for at, line in enumerate(lines, 1):
                if (max_count is not None and n >= max_count) or (max_time is not None and time.monotonic() - began >= max_time):
                    break
                if not line.strip():
                    continue
                try:
                    o = json.loads(line)
                    stamp, event = (o.get("timestamp", 0), o["event"]) if "worker_id" not in o else (0, o)
                    if timed:
                        time.sleep(max(0.0, stamp / 1000 - (time.monotonic() - began)))
                    indexer.apply_router_event(event)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
                    warnings.warn(f"{input_path}: line {at} is left out: {e}", stacklevel=2)
                    continue
                n += 1
        return n
