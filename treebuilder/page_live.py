"""A page that grows: calls in, pieces out. It knows no database and no network; whoever serves it feeds it."""

from collections.abc import Collection

from recorder.call import Call
from treebuilder.build import Builder
from treebuilder.page import html
from treebuilder.page_data import Tables
from treebuilder.page_images import images


class LivePage:
    """`pieces` only ever gets longer, so `html` may run while another thread adds; nothing else may."""

    def __init__(self, *, structural: bool = False, sessions: Collection[str] = ()) -> None:
        """`sessions`: only these are shown; empty = all."""
        self.pieces: list[str] = []
        """JSON, each what came since the one before."""
        self._structural = structural
        self._sessions = sessions
        self._images: dict[str, str] = {}
        self._tables = Tables(self._images)
        self._builder = Builder(structural=structural)

    def restart(self) -> None:
        """The calls are about to be handed over again, some of them changed; pieces go on from what was told."""
        self._builder = Builder(structural=self._structural)

    def add(self, call: Call) -> None:
        self._images.update(images(call))
        self._builder.add(call)

    def publish(self) -> None:
        """Make a piece of what was added, if it changed anything."""
        trajectory = self._builder.trajectory()
        shown = trajectory.only(self._sessions) if self._sessions else trajectory
        piece = self._tables.piece(shown)
        if piece is not None:
            self.pieces.append(piece)

    def html(self) -> str:
        return html(self.pieces, live=True)
