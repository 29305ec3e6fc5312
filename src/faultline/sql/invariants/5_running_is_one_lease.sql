-- I5  Running means exactly: one lease, with owner, token and expiry, and no other pointer.
select p.job_id, format('is in %s places: %s', count(*), string_agg(p.place, ', ' order by p.place))
       as detail
  from {schema}.pointers p
 group by p.job_id
having count(*) > 1
union all
select l.job_id, format('lease without %s', case
           when coalesce(l.worker, '') = '' then 'an owner'
           when coalesce(l.fencing_token, 0) < 1 then 'a token'
           else 'an expiry' end)
  from {schema}.lease l
 where coalesce(l.worker, '') = '' or coalesce(l.fencing_token, 0) < 1
    or l.expires_at is null or not isfinite(l.expires_at)
union all
select p.job_id, format('%s leads to no job', p.place)
  from {schema}.pointers p
 where p.place <> 'quarantine'
   and not exists (select from {schema}.job j where j.id = p.job_id)
