"""What goes wrong between this package and the host."""


class NamespaceError(RuntimeError):
    """The host refuses a network of workers; the message is one sentence that says what to do."""


class ProbeError(RuntimeError):
    """The network does not do what was asked; the message is one sentence that says what to do."""


class BrokenProbeError(ProbeError):
    """A connection of the probe broke off, or a busy host let too little come over it: all workers
    may try once more.
    """
