API={{ api }}
AUTH="Authorization: Bearer $MARLAAS_TOKEN"
printf '{"prompt": "What is %d + %d?", "answer": "%d"}\n' 1 2 3 2 2 4 3 5 8 > rows.jsonl
## The rows as the body
curl -sS --fail-with-body "$API/datasets/?name=sums" -H "$AUTH" \
  -H 'Content-Type: application/jsonl' --data-binary @rows.jsonl
## The rows as a form
curl -sS --fail-with-body "$API/datasets/" -H "$AUTH" -F name=sums -F held_out_fraction=0.2 -F file=@rows.jsonl
