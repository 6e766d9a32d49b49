"""The pocket world: an invented world, a small language model that gets it wrong, and an oracle (all simulated).

    from mitigate.pocket import Oracle, build_world
    world = build_world(seed=0)
    Oracle(world).annotate(reference=world.entities[0].document.text, answer="…")

It is where methods can be seen to work, or not, in minutes on a laptop. Nothing in it exists, and figures from it
say nothing about real language models or documents.
"""

from mitigate.pocket.oracle import Oracle
from mitigate.pocket.world import Document, Entity, World, build_world

__all__ = ["Document", "Entity", "Oracle", "World", "build_world"]
