curl -sSN --fail-with-body "{{ api }}/events/stream/?type=status,adapter" -H "Authorization: Bearer $MARLAAS_TOKEN"
