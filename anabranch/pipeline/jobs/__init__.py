"""The jobs: functions from tables to tables. Every rule they apply is one of `core`, or a named twin of one."""
