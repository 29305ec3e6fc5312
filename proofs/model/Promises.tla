----------------------------- MODULE Promises -----------------------------
(* What the protocol of Lease promises. The numbers are those of the queries  *)
(* in sql/invariants. Where a promise is about one step and not about one     *)
(* state it is written [][...]_vars.                                          *)
EXTENDS Lease

OneEndingPerToken ==                                                              \* I1
    \A j \in Jobs : \A a, b \in DOMAIN db.ends[j] :
        a # b => db.ends[j][a].token # db.ends[j][b].token

SuccessIsLast ==                                                                  \* I2
    \A j \in Jobs : \A i \in DOMAIN db.ends[j] :
        db.ends[j][i].outcome = "succeeded" =>
            i = Len(db.ends[j]) /\ db.at[j] = {} /\ db.token[j] = db.ends[j][i].token

NoStaleTransition == \A j \in Jobs : "stale" \notin db.wrong[j]                   \* I3
NoLateTransition == \A j \in Jobs : "late" \notin db.wrong[j]                     \* I3, strict

DeadLeaseStaysDead ==                                                             \* I3, renewal
    [][\A j \in Jobs :
        db.lease[j] # None /\ ~db.lease[j].live /\ db'.lease[j] # None /\ db'.lease[j].live
        => timeline' # timeline \/ db'.epoch > db.epoch \/ db'.token[j] > db.token[j]]_vars

TokensOnlyGrow ==                                                                 \* I4
    [][\A j \in Jobs :
        db'.token[j] # db.token[j] /\ timeline' = timeline => db'.token[j] > top[j]]_vars
EndingsInOrder ==
    \A j \in Jobs : \A a, b \in DOMAIN db.ends[j] :
        a < b => db.ends[j][a].token < db.ends[j][b].token

RunningIsOneLease ==                                                              \* I5
    \A j \in Jobs :
        /\ Cardinality(db.at[j]) <= 1
        /\ "lease" \in db.at[j] <=> db.lease[j] # None
        /\ db.lease[j] # None => db.lease[j].owner \in Workers /\ ~Has(j, db.token[j])

EveryAttemptEnds ==                                                               \* I6
    \A j \in Jobs : db.lease[j] = None /\ db.token[j] > 0 => Has(j, db.token[j])

NothingIsLost ==                                                                  \* I7
    \A j \in Jobs :
        db.at[j] = {} /\ db.token[j] > 0 => Last(j) \in {"succeeded", "dead", "cancelled"}

EffectAtMostOnce ==                                                               \* I8
    \A j \in Jobs : db.effects[j] <= 1
EffectMeansSuccess ==
    \A j \in Jobs : db.effects[j] > 0 => Last(j) = "succeeded"

(* With a synchronous standby: what was committed stays. *)
CommittedStays == [][\A j \in Jobs : Len(db'.ends[j]) >= Len(db.ends[j])]_vars

(* Liveness: an accepted job ends, or goes to quarantine, or was lost with a failover. *)
EveryJobEnds == \A j \in Jobs : db.at[j] # {} ~>
    \/ db.at[j] = {"quarantine"}
    \/ db.at[j] = {} /\ Last(j) \in {"none", "succeeded", "dead", "cancelled"}
NeverExhausted == \A j \in Jobs : "ready" \in db.at[j] => Room(j)
============================================================================
