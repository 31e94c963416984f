/* vipl_priv.h: programs of the literature include it beside vipl.h. There is nothing in it: handles are opaque. */
#ifndef VIPL_PRIV_H
#define VIPL_PRIV_H
#endif
