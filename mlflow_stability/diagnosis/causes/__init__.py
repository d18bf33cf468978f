"""Why a finding came about."""
