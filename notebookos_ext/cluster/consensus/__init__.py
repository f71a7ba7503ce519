"""A kernel's replicated log, decided without a clock, a socket or a file.

Reading order: `membership` (who belongs to a group), `messages` (what members say and keep),
`quorum`, `snapshot` and `log`, `ready` (what a member wants done), `election` (what exists only
while a member stands for leader), `progress`, `reads` and `leading` (only while it leads), `voter`
and `node` (the step machine), `replicated_log` (what others use).

Follows Ongaro's dissertation "Consensus: Bridging Theory and Practice" (2014), cited by section as
"thesis".
"""
