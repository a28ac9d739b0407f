import json
import os
import urllib.request

API = "{{ api }}"
TOKEN = os.environ["MARLAAS_TOKEN"]


def call(path, body=None, content_type="application/json"):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": content_type}
    with urllib.request.urlopen(urllib.request.Request(API + path, data, headers)) as answer:
        return json.load(answer)
## Upload rows, say what is right, start a job
rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(2, 9) for b in range(2, 9)]
body = "".join(json.dumps(row) + "\n" for row in rows).encode()
dataset = call("/datasets/?name=quickstart-sums", body, "application/jsonl")
reward = call("/reward-functions/", {"name": "quickstart-number", "spec": {"grader": {"type": "numeric"}}})
job = call(
    "/jobs/",
    {
        "name": "quickstart",
        "base_model": call("/base-models/")["results"][0]["id"],
        "dataset_version": dataset["id"],
        "reward_version": reward["id"],
        "settings": {"training": {"steps": 2}},
    },
)
print(job["id"])
