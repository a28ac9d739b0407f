import json
import os
import sys
import time
import urllib.request

API = "{{ api }}"


def follow(path):
    """Every event, each once, through cuts and restarts; stops when the stream says that nothing will follow."""
    cursor = ""
    while True:
        headers = {"Authorization": "Bearer " + os.environ["MARLAAS_TOKEN"], "Last-Event-ID": cursor}
        try:
            with urllib.request.urlopen(urllib.request.Request(API + path, headers=headers), timeout=60) as stream:
                fields = {}
                for line in stream:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name:
                        fields[name] = value
                    elif "data" in fields:
                        data = json.loads(fields["data"])
                        if fields["event"] != "end":
                            cursor = fields["id"]
                            yield fields["event"], data
                        elif data["reason"] in ("finished", "revoked"):
                            return
                        fields = {}
                    else:
                        fields = {}
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise
        except OSError:
            pass  # a cut: come back with the cursor
        time.sleep(1)


for event, data in follow(f"/jobs/{sys.argv[1]}/events/stream/"):
    if event == "status":
        print(data["payload"]["status"], data["payload"]["reason"], flush=True)
    if event == "step":
        print("step", data["payload"]["step"], data["payload"]["metrics"].get("reward_mean"), flush=True)
