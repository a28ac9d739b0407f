API={{ api }}
AUTH="Authorization: Bearer $MARLAAS_TOKEN"
first_id() { sed 's/[^{]*{"id":"\([^"]*\)".*/\1/'; }
## Upload rows
printf '{"prompt": "What is %d + %d?", "answer": "%d"}\n' 1 2 3 2 2 4 3 5 8 4 3 7 6 2 8 5 4 9 > sums.jsonl

DATASET_VERSION=$(curl -sS --fail-with-body "$API/datasets/?name=quickstart-sums" \
  -H "$AUTH" -H 'Content-Type: application/jsonl' --data-binary @sums.jsonl | first_id)
echo "dataset version $DATASET_VERSION"
## Say what is right
REWARD_VERSION=$(curl -sS --fail-with-body "$API/reward-functions/" \
  -H "$AUTH" -H 'Content-Type: application/json' \
  -d '{"name": "quickstart-number", "spec": {"grader": {"type": "numeric"}}}' | first_id)
echo "reward version $REWARD_VERSION"
## Start a job
BASE_MODEL=$(curl -sS --fail-with-body "$API/base-models/" -H "$AUTH" | sed 's/.*"results":\[{"id":"\([^"]*\)".*/\1/')

JOB=$(curl -sS --fail-with-body "$API/jobs/" \
  -H "$AUTH" -H 'Content-Type: application/json' -H "Idempotency-Key: quickstart-$DATASET_VERSION" \
  -d @- <<END | first_id
{"name": "quickstart", "base_model": "$BASE_MODEL",
 "dataset_version": "$DATASET_VERSION", "reward_version": "$REWARD_VERSION",
 "settings": {"training": {"steps": 2}}}
END
)
echo "job $JOB"
## Watch it until it ends
curl -sSN --fail-with-body "$API/jobs/$JOB/events/stream/?type=status,step,evaluation,adapter" -H "$AUTH"
## Fetch the adapter
ADAPTER=$(curl -sS --fail-with-body "$API/jobs/$JOB/adapters/?final=true" -H "$AUTH" |
  sed 's/.*"results":\[{"id":"\([^"]*\)".*/\1/')
LINK=$(curl -sS --fail-with-body -X POST "$API/adapters/$ADAPTER/link/" -H "$AUTH" | sed 's/.*"url":"\([^"]*\)".*/\1/')
curl -sS --fail-with-body -o adapter.zip "$LINK"
