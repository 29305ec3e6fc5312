-- What became of a COMMIT whose answer was lost.

-- transaction_mark: names this transaction for commit_status. Between a crash of the server and the
-- next beat of a worker the life has no name.
create or replace function {schema}.transaction_mark(txid xid8, life uuid) returns text
language sql immutable
return txid::text || ':' || coalesce(life::text, '-');  -- simple enough to be inlined

-- same_transaction: this is still the transaction in which `fence` gave this mark. In the database
-- and not in the client: a statement that also ends the job must not commit alone.
--
-- Raises   LF003 otherwise.
create or replace function {schema}.same_transaction(mark text) returns void
language plpgsql
{definer}
as $$
begin
    -- Not the whole mark: the life may get its name meanwhile.
    if split_part(same_transaction.mark, ':', 1) is distinct from pg_current_xact_id()::text then
        perform invalid('the fenced transaction was ended inside its block: leave COMMIT and '
                        'ROLLBACK to the block, and use a savepoint (connection.transaction(), '
                        'session.begin_nested()) instead');
    end if;
end $$;

-- commit_status: of the transaction in which `fence` gave this mark.
--
-- Transaction ids are believed only in the life of the server in which they were given out: after a
-- crash, or on a promoted standby, the same id may be somebody else's. What remains then is whether
-- its ending or its step is there.
--
-- Answers  committed, aborted, in progress (ask again), or unknown: in an earlier life, and neither
--          the ending nor a step of it is in this database.
-- Raises   LF003 when the mark is none.
create or replace function {schema}.commit_status(job_id uuid, token bigint, mark text)
returns text
language plpgsql
{pinned}
as $$
#variable_conflict use_column
declare
    v_txid xid8;
begin
    if coalesce(commit_status.mark, '') !~ '^[0-9]{1,20}:([0-9a-f-]{36}|-)$' then
        perform invalid('the mark is not one that fence answered with');
    end if;
    v_txid := split_part(commit_status.mark, ':', 1)::xid8;
    if exists (select from server_life
                where life::text = split_part(commit_status.mark, ':', 2)) then
        return coalesce(pg_xact_status(v_txid), 'unknown');
    end if;
    -- Without a name it may have been this life: wait for it, or for somebody who got its id, and
    -- only then look. An own id tells which have been given out: of later ones nobody may ask.
    if split_part(commit_status.mark, ':', 2) = '-' and v_txid < pg_current_xact_id() then
        if pg_xact_status(v_txid) = 'in progress' then
            return 'in progress';
        end if;
    end if;
    if exists (select from attempt a
                where a.job_id = commit_status.job_id and a.fencing_token = commit_status.token
                  and a.txid = v_txid)
       or exists (select from step s
                   where s.job_id = commit_status.job_id
                     and s.fencing_token = commit_status.token and s.txid = v_txid) then
        return 'committed';
    end if;
    return 'unknown';
end $$;
