"""REST API, version 1. Each view reads with a selector or writes with a service, of the token's tenant only."""
