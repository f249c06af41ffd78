// Nothing of this header is needed; see `gloo/rendezvous/store.h`.
#pragma once
