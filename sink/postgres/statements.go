package postgres

// which names a statement about a target whose text is made once for each shape
// (and stage).
type which int

const (
	rowUpsert which = iota
	rowPatch
	rowPatchIfThere
	rowDelete
	keysDelete
	rowStep
	rowBegin
	moveFill
	moveUnfilled
	moveInsert
	insertStaged
	upsertStaged
	patchStaged
	stagedDelete
	stepFill
	stepStaged
	stepsStaged
	statementsMax
)

// sql is the statement's text.
func (sh *shape) sql(n which) string {
	if sh.texts[n] == "" {
		sh.texts[n] = sh.make(n)
	}
	return sh.texts[n]
}

func (sh *shape) make(n which) string {
	switch n {
	case rowUpsert:
		return sh.upsertRowSQL()
	case rowPatch:
		return sh.patchRowSQL()
	case rowPatchIfThere:
		return sh.patchIfThereSQL()
	case rowDelete:
		return sh.deleteKeySQL()
	case keysDelete:
		return sh.deleteKeysSQL()
	case rowStep:
		return sh.stepRowSQL()
	case rowBegin:
		return sh.beginVersionSQL()
	case moveFill:
		return sh.fillStageSQL(groupMove)
	case moveUnfilled:
		return sh.unfilledSQL(groupMove)
	case moveInsert:
		return sh.upsertStageSQL(groupMove, true)
	case insertStaged:
		return sh.upsertStageSQL(groupInsert, false)
	case upsertStaged:
		return sh.upsertStageSQL(groupUpsert, false)
	case patchStaged:
		return sh.patchStageSQL()
	case stagedDelete:
		return sh.deleteStageKeysSQL()
	case stepFill:
		return sh.fillStepsSQL()
	case stepStaged:
		return sh.stepStageSQL(false)
	case stepsStaged:
		return sh.stepStageSQL(true)
	}
	panic("no such statement")
}
