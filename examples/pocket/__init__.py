"""The pocket world: an invented world, a small language model that gets it wrong, and an oracle (all simulated).

    from examples.pocket import Oracle, build_world
    world = build_world(seed=0)
    Oracle(world).annotate(reference=world.entities[0].document.text, answer="…")

It is where methods can be seen to work, or not, in minutes on a laptop. Nothing in it exists, and figures from it
say nothing about real language models or documents.
"""

from examples.pocket.make import load_world
from examples.pocket.oracle import Oracle
from examples.pocket.world import Document, Entity, World, build_world

__all__ = ["Document", "Entity", "Oracle", "World", "build_world", "load_world"]
