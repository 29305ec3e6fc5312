-- From here on workers decide how often autovacuum comes to these (see spare_vacuum).
alter table {schema}.ready set (autovacuum_vacuum_threshold = 20000);
alter table {schema}.lease set (autovacuum_vacuum_threshold = 20000);
alter table {schema}.scheduled set (autovacuum_vacuum_threshold = 20000);
