"""A local page that follows a study while a run goes on."""
