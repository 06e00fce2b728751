"""The real EngineCore under a virtual clock, with a cost model in place of a device. No scheduling code lives here."""
