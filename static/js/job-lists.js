// Home and the list of jobs: fetch their part of the page again when a job of the tenant has news.
import { LiveConnection } from "./live.js";

const connection = new LiveConnection("/ws/jobs/");
connection.addEventListener("frame", () => document.body.dispatchEvent(new CustomEvent("live:jobs")));
connection.open();
