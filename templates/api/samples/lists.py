import json
import os
import urllib.request

API = "{{ api }}"


def every(path):
    """All entries of a list, page by page."""
    address = API + path
    while address:
        headers = {"Authorization": "Bearer " + os.environ["MARLAAS_TOKEN"]}
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            page = json.load(answer)
        yield from page["results"]
        address = page["next"]


for job in every("/jobs/?status=running&status=queued&page_size=100"):
    print(job["id"], job["name"], job["status"])
