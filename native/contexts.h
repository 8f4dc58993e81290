/* The contexts of this process, and what they hold. */
#ifndef GPUTILE_CONTEXTS_H
#define GPUTILE_CONTEXTS_H

/* A child made by fork has none of them. */
void gputile_contexts_in_child(void);

#endif
