"""Drawings along a time axis: who does what, and when the database says no."""

from __future__ import annotations

from website.pictures.drawing import Drawing


def lease_and_fence() -> Drawing:
    """The same late write, with a lease alone and with a token beside it."""
    d = Drawing(
        *(1000, 500, "A lease alone, and a lease with a fencing token"),
        "Above, with a lease alone: worker A stalls past the end of its lease, worker B takes the "
        "job over and writes, then A wakes up and writes too; both rows are there. Below, with a "
        "token: A's write carries token 1, the job is at 2, and the database refuses it.",
    )
    for top, fenced in ((20, False), (265, True)):
        a, database, b = top + 55, top + 120, top + 185
        d.text(20, top + 12, "a lease and a token" if fenced else "a lease alone", "title")
        for y, name in ((a, "worker A"), (database, "database"), (b, "worker B")):
            d.lane(y, name)
        d.tick(430, top + 30, top + 205)
        d.text(436, top + 34, "A's lease ends", "small")
        d.box("a", 140, 230, a, "works")
        d.box("still", 230, 700, a, "stalled")
        d.box("a", 700, 770, a, "writes")
        d.box("b", 470, 620, b, "works")
        d.arrow(140, a + 16, 140, database - 4)
        d.text(148, database - 10, "claims" + (": token 1" if fenced else ""), "mono")
        d.arrow(470, b - 16, 470, database + 4)
        d.text(478, database + 24, "claims" + (": token 2" if fenced else ""), "mono")
        d.arrow(620, b - 16, 620, database + 4)
        d.text(628, database + 24, "commits its row", "good")
        if fenced:
            d.arrow(770, a + 16, 770, database - 22)
            d.cross(770, database - 12)
            d.text(786, database - 20, "token 1, the job is at 2:", "mono")
            d.text(786, database - 3, "refused, rolled back, kept", "bad")
        else:
            d.arrow(770, a + 16, 770, database - 4)
            d.text(786, database - 12, "a second row lands", "bad")
    return d


def window() -> Drawing:
    """A check and then a write, and a check that is part of the transaction."""
    d = Drawing(
        *(1000, 470, "A check before the write, and a check that holds"),
        "Above: the application asks whether it still owns the job, is told yes, stalls, and then "
        "writes; in between the job was taken over. Below: the check locks the lease's row until "
        "the commit, so that nobody can take the job over in between.",
    )
    top = 20
    d.text(20, top + 12, "a check in the application", "title")
    d.lane(top + 60, "worker A")
    d.lane(top + 130, "lease row")
    d.box("a", 150, 290, top + 60, "still mine? yes")
    d.box("open", 290, 720, top + 60, "the window: as long as it likes to be")
    d.box("a", 720, 860, top + 60, "INSERT, COMMIT")
    d.box("a", 130, 440, top + 130, "A, token 1")
    d.box("b", 480, 960, top + 130, "B, token 2")
    d.arrow(220, top + 76, 220, top + 112)
    d.text(345, top + 105, "lease ends, B takes over", "small")
    d.tick(460, top + 78, top + 160)
    d.text(790, top + 100, "lands: nobody asked again", "bad", "middle")
    top = 250
    d.text(20, top + 12, "a check in the database, in the transaction that writes", "title")
    d.lane(top + 60, "worker A")
    d.lane(top + 130, "lease row")
    d.box("a", 150, 290, top + 60, "INSERT")
    d.box("a", 290, 470, top + 60, "assert_fence(job, 1)")
    d.box("a", 580, 700, top + 60, "COMMIT")
    d.box("a", 130, 960, top + 130, "A, token 1")
    d.box("plain", 380, 700, top + 130, "locked: a reclaim passes it by", 24)
    d.arrow(380, top + 76, 380, top + 114)
    d.arrow(700, top + 76, 700, top + 114)
    d.text(712, top + 100, "no successor before the COMMIT", "good")
    d.text(
        *(130, top + 180),
        "Had the lease been gone, assert_fence would have raised, and the INSERT been rolled back.",
        "small",
    )
    d.text(
        *(130, top + 198),
        "Had A stalled behind it, the server would have ended its session when the lease ran out.",
        "small",
    )
    return d


def heartbeats() -> Drawing:
    """Whatever the interval: the beats stop with the worker, and the write comes after."""
    d = Drawing(
        *(1000, 330, "Heartbeats, and the gap that they leave"),
        "Three leases of different lengths. In each the worker's heartbeats stop when it stalls, "
        "the lease ends some time later, another worker may begin, and the late write comes after "
        "that. A shorter lease only ends earlier; a longer one only makes everybody wait longer.",
    )
    stall, wakes = 360, 860
    d.tick(stall, 30, 300)
    d.text(stall, 24, "A stalls", "small", "middle")
    d.tick(wakes, 30, 300)
    d.text(wakes, 24, "A wakes up and writes", "small", "middle")
    for n, (name, every, lease) in enumerate(
        (("long lease", 100, 230), ("short lease", 40, 130), ("very short", 14, 46))
    ):
        y = 75 + n * 90
        d.lane(y, name)
        last = stall - (stall - 140) % every
        d.box("a", 140, last + lease, y, "", 22)
        d.box("still", last + lease, wakes, y, "", 22)
        for beat in range(140, last + 1, every):
            d.dot(beat, y)
        d.text(last + lease - 6, y - 17, "lease ends", "small", "end")
        d.text(
            (last + lease + wakes) / 2, y + 5, "another worker may have the job", anchor="middle"
        )
        d.arrow(wakes, y - 2, wakes + 26, y - 2)
        d.text(wakes + 32, y + 3, "late", "bad")
    d.text(
        *(140, 316),
        "● a heartbeat. The gap is not between two beats; it is between A's last look at its lease "
        "and A's write, and no beat is in it.",
        "small",
    )
    return d


def failover() -> Drawing:
    """A standby that lost the last claims, with and without an epoch in the token."""
    d = Drawing(
        *(1000, 330, "Tokens across a failover"),
        "The primary gave out tokens 6 and 7, which the standby never received. Without an epoch "
        "the promoted standby gives out 6 again, and two workers hold it. With the epoch in the "
        "upper bits its first token is 2 to the power of 40, above everything handed out before.",
    )
    d.lane(60, "primary")
    for x, token in ((150, "5"), (250, "6"), (350, "7")):
        d.box("a", x, x + 60, 60, f"token {token}")
    d.cross(450, 60, 10)
    d.text(470, 55, "dies", "bad")
    d.text(470, 72, "6 and 7 never reached the standby", "small")
    d.tick(560, 40, 310)
    d.text(566, 100, "the standby is promoted: a new timeline", "small")
    d.text(20, 135, "a counter alone", "title")
    d.lane(175, "standby")
    d.box("a", 150, 210, 175, "token 5")
    d.box("open", 600, 660, 175, "token 6")
    d.text(676, 171, "two hold token 6: a worker of the old", "bad")
    d.text(676, 188, "primary passes for the new one", "bad")
    d.text(20, 240, "the epoch in the upper bits", "title")
    d.lane(280, "standby")
    d.box("a", 150, 210, 280, "token 5")
    d.box("b", 600, 780, 280, "1,099,511,627,776")
    d.text(796, 276, "above everything that", "good")
    d.text(796, 293, "was ever handed out", "good")
    return d
