------------------------------- MODULE Lease -------------------------------
(* The lease protocol of Faultline, as its SQL functions make it.             *)
(*                                                                            *)
(* An action in lower case is the SQL function of that name; one with a       *)
(* capital is the world: time, processes, connections, replication. Each SQL  *)
(* call is one step, except where a transaction of the user's own goes on     *)
(* after it (complete_one, assert_fence, fence): those end with Commit.       *)
(*                                                                            *)
(* Time is only this: a lease that is live may at any moment Expire. A worker *)
(* is one running attempt; a process that runs five jobs is five of them.     *)
(* The primary key of attempt is left out on purpose: what is proved here is  *)
(* that it is never needed.                                                   *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Jobs, Workers, None,
    MaxTokens,       \* tokens of a job in one epoch; stands for the 2^40 of an epoch
    MaxAttempts, MaxCrashes,
    MaxFailovers,
    Synchronous,     \* TRUE: the standby has every commit
    Without,         \* verbs that are left out of this configuration
    Steady,          \* the worker that keeps trying (liveness)
    Tell,            \* TRUE: `did` tells each step, for a timeline
    Variant          \* "faithful", or the guard that is taken out

VARIABLES
    db,              \* the primary's committed state
    standby,         \* an earlier db, or None when no failover is left
    timeline,        \* the server's: rises by one with each promotion
    worker,          \* what each worker believes, and the transaction it has open
    top,             \* ghost: the highest token of the job, also on histories since lost
    did              \* ghost: the step just made, if Tell

vars == <<db, standby, timeline, worker, top, did>>

----------------------------------------------------------------------------
(* Values *)

Idle == [phase |-> "idle", job |-> None, token |-> 0, tx |-> "none", late |-> FALSE]

Empty ==
    [at       |-> [j \in Jobs |-> {}],      \* pointers: ready, scheduled, lease, quarantine
     token    |-> [j \in Jobs |-> 0],       \* of the pointer, or of the last attempt
     lease    |-> [j \in Jobs |-> None],
     ends     |-> [j \in Jobs |-> <<>>],    \* the attempt table, in the order of its commits
     attempts |-> [j \in Jobs |-> 0],
     crashes  |-> [j \in Jobs |-> 0],
     asked    |-> [j \in Jobs |-> FALSE],   \* cancel_request
     effects  |-> [j \in Jobs |-> 0],       \* the user's own rows, committed with complete_one
     wrong    |-> [j \in Jobs |-> {}],      \* ghost: what a transition should have been refused for
     epoch    |-> 0,
     timeline |-> 1]                        \* the timeline the epoch row has seen

Init ==
    /\ db = Empty
    /\ standby = IF MaxFailovers > 0 /\ ~Synchronous THEN Empty ELSE None
    /\ timeline = 1
    /\ worker = [w \in Workers |-> Idle]
    /\ top = [j \in Jobs |-> 0]
    /\ did = <<>>

Max(a, b) == IF a > b THEN a ELSE b
Span == MaxTokens + 2
Epoch ==                                                   \* epoch_of
    CASE Variant = "no_epoch" -> 0
      [] Variant = "one_step" -> db.epoch + IF timeline # db.timeline THEN 1 ELSE 0
      [] OTHER -> db.epoch + timeline - db.timeline
Raised(j) == Max(db.token[j] + 1, Epoch * Span)            \* greatest(previous + 1, floor)
Room(j) == Raised(j) - Epoch * Span <= MaxTokens
Last(j) == IF db.ends[j] = <<>> THEN "none" ELSE db.ends[j][Len(db.ends[j])].outcome
Has(j, t) == \E i \in DOMAIN db.ends[j] : db.ends[j][i].token = t
Seen == Variant = "no_epoch" \/ db.timeline = timeline     \* token_floor has been asked

(* Row locks. complete_one deletes the lease row, assert_fence holds it FOR KEY SHARE. *)
Deleting(j) ==
    /\ Variant # "check_then_write"
    /\ \E w \in Workers : worker[w].job = j /\ worker[w].tx \in {"complete_one", "orphan"}
Held(j) == Deleting(j) \/ \E w \in Workers : worker[w].job = j /\ worker[w].tx = "assert_fence"

(* The fence: the qualification under which every verb of a worker takes the lease row. *)
Fence(w) ==
    LET me == worker[w] IN
    /\ db.lease[me.job] # None
    /\ Variant = "no_token" \/ db.token[me.job] = me.token
    /\ Variant = "frozen_clock" \/ db.lease[me.job].live

(* The truth about a worker's claim to the job, whatever the fence has let through. *)
Mine(w) == /\ db.lease[worker[w].job] # None
           /\ db.lease[worker[w].job].owner = w
           /\ db.token[worker[w].job] = worker[w].token
Late(w) == Mine(w) /\ ~db.lease[worker[w].job].live

On(verb) == verb \notin Without
Say(verb, w, j, t) == did' = IF Tell THEN <<verb, w, j, t>> ELSE <<>>
By(verb, w) == Say(verb, w, worker[w].job, worker[w].token)

(* Steps on one job of a database state d. *)
Into(d, j, place) == [d EXCEPT !.at[j] = @ \cup {place}]
OutOf(d, j, place) == [d EXCEPT !.at[j] = @ \ {place}]
Freed(d, j) == [OutOf(d, j, "lease") EXCEPT !.lease[j] = None]
Ended(d, j, t, outcome) ==
    [d EXCEPT !.ends[j] = Append(@, [token |-> t, outcome |-> outcome])]
Blamed(d, w, late) ==
    [d EXCEPT !.wrong[worker[w].job] =
        @ \cup (IF Mine(w) THEN {} ELSE {"stale"}) \cup (IF late THEN {"late"} ELSE {})]

(* What a settling verb does to the lease it took; the ending has the lease's token. *)
Settled(w, outcome, late) ==
    LET me == worker[w]
        hit == db.lease[me.job] # None /\ (Variant = "no_token" \/ db.token[me.job] = me.token)
        token == IF hit THEN db.token[me.job] ELSE me.token
        d == Blamed(db, w, late)
    IN  Ended(IF hit THEN Freed(d, me.job) ELSE d, me.job, token, outcome)

(* put_back and put_off: a job that somebody asked to cancel ends here instead (end_cancelled). *)
PutBack(d, j, place) ==
    IF db.asked[j]
    THEN /\ db' = Ended([d EXCEPT !.token[j] = Raised(j), !.asked[j] = FALSE],
                        j, Raised(j), "cancelled")
         /\ top' = [top EXCEPT ![j] = Max(@, Raised(j))]
    ELSE db' = Into(d, j, place) /\ UNCHANGED top

----------------------------------------------------------------------------
(* Producers, operators, reconcilers: anybody's calls *)

enqueue(j) ==
    /\ db.at[j] = {} /\ db.ends[j] = <<>>      \* after a lost enqueue the same id comes again
    /\ \E place \in {"ready", "scheduled"} : db' = Into(db, j, place)
    /\ Say("enqueue", None, j, 0)
    /\ UNCHANGED <<standby, timeline, worker, top>>

promote(j) ==
    /\ \/ "scheduled" \in db.at[j] /\ db' = Into(OutOf(db, j, "scheduled"), j, "ready")
       \/ "ready" \in db.at[j] /\ ~Room(j)     \* park_exhausted
          /\ db' = Into(OutOf(db, j, "ready"), j, "quarantine")
    /\ Say("promote", None, j, 0)
    /\ UNCHANGED <<standby, timeline, worker, top>>

see_epoch ==                                   \* the first part of claim, renew and reclaim
    /\ Variant # "no_epoch" /\ db.timeline # timeline
    /\ db' = [db EXCEPT
              !.timeline = timeline,
              !.epoch = Epoch,
              !.lease = [j \in Jobs |->        \* restart_leases, skipping what is being deleted
                  IF db.lease[j] = None \/ Deleting(j) THEN db.lease[j]
                  ELSE [db.lease[j] EXCEPT !.live = TRUE]]]
    /\ Say("see_epoch", None, None, db'.epoch)
    /\ UNCHANGED <<standby, timeline, worker, top>>

reclaim(j) ==
    /\ Seen
    /\ db.lease[j] # None /\ ~db.lease[j].live /\ ~Held(j)
    /\ LET crashes == db.crashes[j] + IF db.lease[j].started THEN 1 ELSE 0
           freed == [Freed(db, j) EXCEPT !.crashes[j] = crashes]
           burnt == IF Variant = "no_burn" THEN freed
                    ELSE Ended(freed, j, db.token[j], "expired")
       IN  IF crashes >= MaxCrashes
           THEN db' = Into(burnt, j, "quarantine") /\ UNCHANGED top
           ELSE PutBack(burnt, j, "ready")
    /\ Say("reclaim", None, j, db.token[j])
    /\ UNCHANGED <<standby, timeline, worker>>

cancel(j) ==
    /\ On("cancel")
    /\ \/ /\ db.at[j] \cap {"ready", "scheduled", "quarantine"} # {}
          /\ LET gone == [db EXCEPT !.at[j] = @ \cap {"lease"}, !.token[j] = Raised(j)]
             IN  db' = Ended(gone, j, Raised(j), "cancelled")
          /\ top' = [top EXCEPT ![j] = Max(@, Raised(j))]
       \/ /\ db.lease[j] # None /\ ~db.asked[j]            \* its worker is told by renew
          /\ db' = [db EXCEPT !.asked[j] = TRUE]
          /\ UNCHANGED top
    /\ Say("cancel", None, j, db'.token[j])
    /\ UNCHANGED <<standby, timeline, worker>>

requeue(j) ==
    /\ On("requeue")
    /\ Room(j)
    /\ "quarantine" \in db.at[j] \/ (db.at[j] = {} /\ Last(j) = "dead")
    /\ LET moved == [Into(OutOf(db, j, "quarantine"), j, "ready") EXCEPT
                     !.token[j] = Raised(j), !.attempts[j] = 0, !.crashes[j] = 0,
                     !.asked[j] = FALSE]
       IN  db' = Ended(moved, j, Raised(j), "requeued")
    /\ top' = [top EXCEPT ![j] = Max(@, Raised(j))]
    /\ Say("requeue", None, j, Raised(j))
    /\ UNCHANGED <<standby, timeline, worker>>

----------------------------------------------------------------------------
(* A worker's calls *)

claim(w, j) ==
    /\ worker[w].phase = "idle"
    /\ Seen /\ "ready" \in db.at[j] /\ Room(j)
    /\ \E started \in IF "execute" \in Without THEN {TRUE} ELSE BOOLEAN :
           db' = [Into(OutOf(db, j, "ready"), j, "lease") EXCEPT
                  !.token[j] = Raised(j),
                  !.lease[j] = [owner |-> w, live |-> TRUE, started |-> started]]
    /\ worker' = [worker EXCEPT ![w] =
                  [Idle EXCEPT !.phase = "running", !.job = j, !.token = Raised(j)]]
    /\ top' = [top EXCEPT ![j] = Max(@, Raised(j))]
    /\ Say("claim", w, j, Raised(j))
    /\ UNCHANGED <<standby, timeline>>

Running(w) == worker[w].phase = "running"
Free(w) == Running(w) /\ worker[w].tx = "none" /\ ~Held(worker[w].job)  \* else it waits for the row

execute(w) ==
    /\ On("execute")
    /\ Free(w) /\ Fence(w) /\ ~db.lease[worker[w].job].started
    /\ db' = [Blamed(db, w, Late(w)) EXCEPT !.lease[worker[w].job].started = TRUE]
    /\ By("execute", w)
    /\ UNCHANGED <<standby, timeline, worker, top>>

renew(w) ==             \* from the lease keeper: also while the handler's transaction is open
    /\ On("renew")
    /\ Running(w) /\ Seen
    /\ LET j == worker[w].job IN
       /\ ~Deleting(j)
       /\ Fence(w) \/ (Variant = "renew_dead" /\ Mine(w))
       /\ db' = [Blamed(db, w, FALSE) EXCEPT !.lease[j].live = TRUE]
    /\ By("renew", w)
    /\ UNCHANGED <<standby, timeline, worker, top>>

Settle(w, verb) ==
    /\ Free(w) /\ Fence(w)
    /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ By(verb, w)
    /\ UNCHANGED <<standby, timeline>>

complete(w) ==          \* without writes of the user's own
    /\ On("complete")
    /\ Settle(w, "complete")
    /\ db' = Settled(w, "succeeded", Late(w)) /\ UNCHANGED top

fail(w) ==
    /\ On("fail")
    /\ Settle(w, "fail")
    /\ LET j == worker[w].job
           counted(d) == [d EXCEPT !.attempts[j] = @ + 1]
       IN  \/ /\ db.attempts[j] + 1 < MaxAttempts
              /\ PutBack(counted(Settled(w, "failed", Late(w))), j, "scheduled")
           \/ db' = counted(Settled(w, "dead", Late(w))) /\ UNCHANGED top

snooze(w) ==
    /\ On("snooze")
    /\ Settle(w, "snooze")
    /\ PutBack(Settled(w, "snoozed", Late(w)), worker[w].job, "scheduled")

release(w) ==
    /\ On("release")
    /\ Settle(w, "release")
    /\ PutBack(Settled(w, "released", Late(w)), worker[w].job, "ready")

cancel_attempt(w) ==
    /\ On("cancel_attempt")
    /\ Settle(w, "cancel_attempt")
    /\ db' = Settled(w, "cancelled", Late(w)) /\ UNCHANGED top

refuse(w) ==            \* whatever it calls, and however late: nothing happens, and it is told
    /\ Free(w) /\ ~Fence(w)
    /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ By("refuse", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

outcome(w) ==           \* the answer was lost: look the attempt up by (job, token)
    /\ worker[w].phase = "unsure"
    /\ IF Has(worker[w].job, worker[w].token) /\ worker[w].tx = "none"
       THEN worker' = [worker EXCEPT ![w] = Idle]
       ELSE worker' = [worker EXCEPT ![w].phase = "running"]
    /\ By("outcome", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

(* In the user's own transaction, which ends with Commit or not at all. *)

Open(w, verb) ==
    /\ Fence(w)
    /\ worker' = [worker EXCEPT ![w].tx = verb, ![w].late = @ \/ Late(w)]
    /\ By(verb, w)
    /\ UNCHANGED <<db, standby, timeline, top>>

complete_one(w) ==
    /\ Running(w) /\ worker[w].tx \in {"none", "fence"} /\ ~Held(worker[w].job)
    /\ Open(w, "complete_one")

assert_fence(w) ==
    /\ On("assert_fence")
    /\ Free(w) /\ Open(w, "assert_fence")

fence(w) ==             \* only registers: the lease is checked at commit
    /\ On("fence")
    /\ Running(w) /\ worker[w].tx = "none" /\ Open(w, "fence")

----------------------------------------------------------------------------
(* The world *)

Commit(w) ==
    LET me == worker[w] IN
    \/ /\ me.tx = "orphan" \/ (me.phase = "running" /\ me.tx = "complete_one")
       /\ db' = [Settled(w, "succeeded", me.late) EXCEPT !.effects[me.job] = @ + 1]
       /\ worker' = [worker EXCEPT ![w] =
                     IF me.tx = "complete_one" THEN Idle ELSE [me EXCEPT !.tx = "none"]]
       /\ By("Commit", w)
       /\ UNCHANGED <<standby, timeline, top>>
    \/ /\ me.phase = "running" /\ me.tx = "assert_fence"
       /\ db' = Blamed(db, w, me.late)
       /\ worker' = [worker EXCEPT ![w].tx = "none", ![w].late = FALSE]
       /\ By("Commit", w)
       /\ UNCHANGED <<standby, timeline, top>>
    \/ /\ me.phase = "running" /\ me.tx = "fence" /\ ~Deleting(me.job)
       /\ db' = IF Fence(w) THEN Blamed(db, w, Late(w)) ELSE db
       /\ worker' = [worker EXCEPT ![w] =
                     IF Fence(w) THEN [me EXCEPT !.tx = "none", !.late = FALSE] ELSE Idle]
       /\ By("Commit", w)
       /\ UNCHANGED <<standby, timeline, top>>

LoseAck(w) ==           \* the connection breaks around the commit; the server may still make it
    /\ worker[w].phase = "running" /\ worker[w].tx = "complete_one"
    /\ worker' = [worker EXCEPT ![w].phase = "unsure", ![w].tx = "orphan"]
    /\ By("LoseAck", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

CutOff(w) ==            \* the server ends the session: its client is gone, or bound_hold ran out
    /\ \/ worker[w].tx = "orphan"
       \/ /\ worker[w].tx \in {"complete_one", "assert_fence"}
          /\ db.lease[worker[w].job] # None /\ ~db.lease[worker[w].job].live
    /\ worker' = [worker EXCEPT ![w].tx = "none", ![w].late = FALSE]
    /\ By("CutOff", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

Expire(j) ==
    /\ db.lease[j] # None /\ db.lease[j].live
    /\ db' = [db EXCEPT !.lease[j].live = FALSE]
    /\ Say("Expire", db.lease[j].owner, j, db.token[j])
    /\ UNCHANGED <<standby, timeline, worker, top>>

Stall(w) ==
    /\ Running(w)
    /\ worker' = [worker EXCEPT ![w].phase = "stalled"]
    /\ By("Stall", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

Return(w) ==
    /\ worker[w].phase = "stalled"
    /\ worker' = [worker EXCEPT ![w].phase = "running"]
    /\ By("Return", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

Crash(w) ==             \* and start again, knowing nothing; its transaction is rolled back
    /\ worker[w].phase # "idle"
    /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ By("Crash", w)
    /\ UNCHANGED <<db, standby, timeline, top>>

Replicate ==            \* the standby catches up; between two of these it lags
    /\ standby \notin {None, db}
    /\ standby' = db
    /\ Say("Replicate", None, None, 0)
    /\ UNCHANGED <<db, timeline, worker, top>>

Failover ==             \* what was not replicated is gone, the user's own rows with it
    /\ timeline <= MaxFailovers
    /\ db' = IF Synchronous THEN db ELSE standby
    /\ timeline' = timeline + 1
    /\ standby' = IF timeline' <= MaxFailovers /\ ~Synchronous THEN db' ELSE None
    /\ worker' = [w \in Workers |->
           [worker[w] EXCEPT !.tx = "none", !.late = FALSE,
                             !.phase = IF worker[w].tx = "complete_one" /\ @ = "running"
                                       THEN "unsure" ELSE @]]
    /\ Say("Failover", None, None, 0)
    /\ UNCHANGED top

----------------------------------------------------------------------------
ForJob(j) == enqueue(j) \/ promote(j) \/ reclaim(j) \/ cancel(j) \/ requeue(j) \/ Expire(j)

ForWorker(w) ==
    \/ \E j \in Jobs : claim(w, j)
    \/ execute(w) \/ renew(w) \/ complete(w) \/ fail(w) \/ snooze(w) \/ release(w)
    \/ cancel_attempt(w) \/ refuse(w) \/ outcome(w)
    \/ complete_one(w) \/ assert_fence(w) \/ fence(w)
    \/ Commit(w) \/ LoseAck(w) \/ CutOff(w) \/ Stall(w) \/ Return(w) \/ Crash(w)

Next ==
    \/ see_epoch \/ Replicate \/ Failover
    \/ \E j \in Jobs : ForJob(j)
    \/ \E w \in Workers : ForWorker(w)

Spec == Init /\ [][Next]_vars

(* Time passes, the database answers, and one worker keeps trying. *)
Fairness ==
    /\ \A j \in Jobs : WF_vars(promote(j)) /\ WF_vars(reclaim(j)) /\ WF_vars(Expire(j))
    /\ WF_vars(see_epoch)
    /\ \A w \in Workers : WF_vars(CutOff(w))
    /\ \A j \in Jobs : SF_vars(claim(Steady, j))
    /\ WF_vars(Return(Steady)) /\ WF_vars(outcome(Steady)) /\ SF_vars(refuse(Steady))
    /\ SF_vars(complete_one(Steady)) /\ SF_vars(Commit(Steady))
    /\ SF_vars(worker[Steady].tx \in {"complete_one", "orphan"} /\ Commit(Steady))

FairSpec == Spec /\ Fairness
Symmetry == Permutations(Workers) \cup Permutations(Jobs)
=============================================================================
