"""A million jobs in the tables, and every endpoint of the service within 300 ms; see __main__."""
