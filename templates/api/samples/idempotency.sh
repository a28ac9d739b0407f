for attempt in 1 2; do
  curl -sS "{{ api }}/reward-functions/" -H "Authorization: Bearer $MARLAAS_TOKEN" \
    -H 'Content-Type: application/json' -H 'Idempotency-Key: reward-of-2026-11-30' \
    -d '{"name": "number", "spec": {"grader": {"type": "numeric"}}}'
  echo
done
