"""Services that pages and the API share: they check permissions, then call the registry.

accounts        the account of the current user and its tokens
administration  reviews, removals and contributors, for administrators
contributions   uploads and submissions
health          the health of the server, for administrators
planning        plans and comparisons, with limits on their cost
"""
