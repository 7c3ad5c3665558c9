"""What methods have in common whose clients send a whole model and answer with a head of their own."""

from dataclasses import dataclass, replace

from manyheads.contract import (
    Algorithm,
    Broadcast,
    ClientContext,
    Data,
    Predictor,
    PrivateState,
    Tree,
    Update,
)


@dataclass(frozen=True)
class OwnHead(Algorithm):
    """The whole model is sent and averaged, and each client keeps its head besides."""

    def init_private(self, received: Broadcast, ctx: ClientContext) -> PrivateState:
        """The head starts as the global one that is received first."""
        return super().init_private(received, ctx).replace(head=received.model.part("head"))

    def assemble(self, received: Broadcast, private: PrivateState) -> Tree:
        """The received backbone under the private head."""
        return self.reference(received, private).replace(head=private.head)

    def personal(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Predictor:
        return Predictor(self.assemble(received, private), self.logits)

    def local_update(self, received: Broadcast, private: PrivateState, data: Data, ctx: ClientContext) -> Update:
        update = super().local_update(received, private, data, ctx)
        return replace(update, private=update.private.replace(head=update.upload.model.part("head")))

    def reference(self, received: Broadcast, private: PrivateState) -> Tree:
        """The received backbone under the global head."""
        return super().assemble(received, private)
